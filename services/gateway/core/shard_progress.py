"""Whether the sequences of a shard advance, from the load in its leader's heartbeats."""

from shared.messages.control import ShardLoad

MIN_PATIENCE_S = 3.0
PATIENCE_FACTOR = 5.0
FORGET_SHARE = 0.9


class Pace:
    """How long a step usually takes, and how long one may take before something is wrong: five times as long, but
    never under 3 s and hence never over 15 s. The leader judges its workers by the same rule (protocol rule 3)."""

    def __init__(self) -> None:
        self._usual_s = 0.0

    @property
    def patience_s(self) -> float:
        """How long to wait now."""
        return max(MIN_PATIENCE_S, PATIENCE_FACTOR * self._usual_s)

    def on_done(self, took_s: float) -> None:
        """One more is done. What took longer than patience was no step but an outage, and teaches nothing."""
        if took_s <= self.patience_s:
            self._usual_s = max(FORGET_SHARE * self._usual_s, min(took_s, MIN_PATIENCE_S))


class ShardProgress:
    """Busy is not stalled: however much waits, folded frames grow while anything is computed.

    It stalls when sequences run and nothing came of it for the pace's patience; it is over with the next sign of work,
    or once nothing runs and nothing waits. A leader that counts no frames (one just begun, or of the release before)
    is not judged. advanced_at: when frames grew last. Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self.is_stalled = False
        self.advanced_at = float("-inf")
        self._pace = Pace()
        self._takeover = 0
        self._num_frames = 0
        self._is_running = False
        self._since = float("-inf")

    def on_load(self, takeover: int, load: ShardLoad, now: float) -> None:
        """What the leader says in its heartbeat; takeover: the log sequence by which it leads."""
        if takeover != self._takeover:
            self._takeover, self._num_frames = takeover, load.num_folded_frames
            self.on_work(now)
        elif load.num_folded_frames > self._num_frames:
            if self._is_running:
                self._pace.on_done(now - self._since)
            self._num_frames = load.num_folded_frames
            self.advanced_at = now
            self.on_work(now)
        is_running = load.num_running > 0
        if is_running and not self._is_running and not self.is_stalled:
            self._since = now
        self._is_running = is_running
        if is_running and self._num_frames and now - self._since > self._pace.patience_s:
            self.is_stalled = True
        elif not is_running and load.num_waiting == 0:
            self.is_stalled = False

    def on_work(self, now: float) -> None:
        """Work gets done: frames grew, or text came of it."""
        self._since = now
        self.is_stalled = False
