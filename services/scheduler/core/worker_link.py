"""What the leader knows of one worker incarnation: its epoch, the plans in flight, and whether it makes progress.

An epoch goes through three states: OPENING (EpochStart is sent until the worker, idle, reports its cache), OPEN (plans
flow), FENCING (a fence was asked for; nothing is sent until the fold shows it). Protocol rules 3, 5 and 10. Times are
seconds of a monotonic clock, given by the caller.
"""

from collections.abc import Iterator
from enum import Enum

from shared.messages.control import WorkerHeartbeat

SILENCE_S = 1.0
UNFOLDED_S = 0.5
MIN_STALL_S = 2.7  # the fence is in the log within 3 s of the last progress: a tick and an append follow
STALL_STEPS = 5.0
RESEND_S = 0.3
EPOCH_RESEND_S = 0.15
MIN_BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
PLANS_AHEAD = 2

SILENT = "silent"
NOT_FOLDED = "finished step not folded"
NO_PROGRESS = "no progress"


class LinkState(Enum):
    """See the module."""

    OPENING = "opening"
    OPEN = "open"
    FENCING = "fencing"


class WorkerLink:
    """One worker as the leader sees it. sent and folded are steps of the epoch; their difference is in flight."""

    def __init__(self, heartbeat: WorkerHeartbeat, epoch: int, now: float) -> None:
        self.name = heartbeat.worker
        self.heartbeat = heartbeat
        self.heard = now
        self._backoff_s = MIN_BACKOFF_S
        self._not_before = 0.0
        self.step_estimate_s = 0.0
        self.start_epoch(epoch, now)

    def start_epoch(self, epoch: int, now: float) -> None:
        """A new epoch: nothing is in flight, and the worker must report before it gets plans."""
        self.epoch = epoch
        self.state = LinkState.OPENING
        self._before_fencing = LinkState.OPENING
        self._fenced_for = ""
        self.sent = 0
        self.folded = 0
        self._window: dict[int, list[bytes]] = {}
        self._announced = float("-inf")
        self._progress = now
        self._sent_at = now
        self._unfolded_since: float | None = None

    def open(self, now: float) -> None:
        """The worker's cache report for this epoch came."""
        self.state = LinkState.OPEN
        self._progress = now

    # ---- plans ------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another plan may be sent now."""
        return self.state is LinkState.OPEN and self.sent - self.folded < PLANS_AHEAD

    @property
    def next_step(self) -> int:
        """Step of the next plan."""
        return self.sent + 1

    def on_sent(self, parts: list[bytes], now: float) -> None:
        """A plan for next_step was sent, as these messages; kept until its frame is folded."""
        if self.sent == self.folded:
            self._progress = now
        self.sent += 1
        self._window[self.sent] = parts
        self._sent_at = now

    def resend_from(self, step: int, now: float) -> Iterator[bytes]:
        """The messages of all plans in flight from this step on (a PlanGap names it)."""
        self._sent_at = now
        for number in range(max(step, self.folded + 1), self.sent + 1):
            yield from self._window[number]

    def on_folded(self, step: int, now: float) -> None:
        """The frame of a step was folded. A frame is progress even if no row of it counted."""
        for number in range(self.folded + 1, step + 1):
            self._window.pop(number, None)
        self.step_estimate_s = max(0.9 * self.step_estimate_s, min(MIN_STALL_S, now - self._progress))
        self.folded = step
        self._progress = now
        self._unfolded_since = None
        self._backoff_s = MIN_BACKOFF_S

    # ---- heartbeats -------------------------------------------------------------------------------------------------

    def on_heartbeat(self, heartbeat: WorkerHeartbeat, now: float) -> None:
        """What it says of this epoch; of another one it only says that the worker lives."""
        self.heartbeat = heartbeat
        self.heard = now
        if heartbeat.epoch != self.epoch or self.state is not LinkState.OPEN:
            return
        if heartbeat.finished <= self.folded:
            self._unfolded_since = None
        elif self._unfolded_since is None:
            self._unfolded_since = now

    def lagging_step(self, now: float) -> int | None:
        """The step to send again from, if the worker waits for a plan that was sent a while ago: losing the last
        plans leaves no gap that the worker could see."""
        beat = self.heartbeat
        if self.state is not LinkState.OPEN or now - self._sent_at <= RESEND_S:
            return None
        expected = beat.next_plan if beat.epoch == self.epoch else 1
        return expected if expected <= self.sent else None

    def announcement_due(self, now: float) -> bool:
        """Whether EpochStart is to be sent (again); counts as sent."""
        if self.state is not LinkState.OPENING or now - self._announced <= EPOCH_RESEND_S:
            return False
        self._announced = now
        return True

    # ---- progress ---------------------------------------------------------------------------------------------------

    def reset_clocks(self, now: float) -> None:
        """The leader itself was paused or deaf: its clocks say nothing about the worker."""
        self.heard = now
        self._progress = now
        self._unfolded_since = None

    def is_silent(self, now: float) -> bool:
        """Whether no heartbeat came for a second: the process is dead, stopped or cut off."""
        return now - self.heard > SILENCE_S

    def fence_reason(self, now: float) -> str | None:
        """Why the worker must be fenced now, or None. Attempts that fail are repeated with a back-off."""
        if self.state is LinkState.FENCING or now < self._not_before:
            return None
        if self.is_silent(now):
            return SILENT
        if self._unfolded_since is not None and now - self._unfolded_since > UNFOLDED_S:
            return NOT_FOLDED
        limit = max(MIN_STALL_S, STALL_STEPS * self.step_estimate_s)
        if self.sent > self.folded and now - self._progress > limit:
            return NO_PROGRESS
        return None

    def is_broken(self, now: float) -> bool:
        """Whether the step at hand may be what ended or wedged the worker (rule 20 asks which sequence did)."""
        return self.is_silent(now) or self._fenced_for == NO_PROGRESS

    def on_fencing(self, reason: str, now: float) -> None:
        """A fence is being appended, for this reason."""
        self._fenced_for = reason
        self._before_fencing = self.state
        self.state = LinkState.FENCING
        self._not_before = now + self._backoff_s
        self._backoff_s = min(MAX_BACKOFF_S, 2 * self._backoff_s)

    def on_fence_failed(self) -> None:
        """The fence was refused or is unknown: all is as before until fence_reason asks again."""
        if self.state is LinkState.FENCING:
            self.state = self._before_fencing
