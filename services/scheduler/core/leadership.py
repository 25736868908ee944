"""When a scheduler reaches for the lead (protocol rule 2).

Only the fold decides who leads; this decides when to ask. Times are seconds of a monotonic clock, given by the caller.
"""

LEADER_SILENCE_S = 1.0


class LeaderWatch:
    """What a standby hears of the leader. A process's own pause or a dead tail says nothing about others: reset."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._leader_leaves = False

    def reset(self, now: float) -> None:
        """Begin to listen anew: a take-over was folded, or this process was not listening."""
        self._heard = now
        self._leader_leaves = False

    def on_heartbeat(self, leader: str, folded_leader: str, now: float, *, leaving: bool = False) -> None:
        """A heartbeat counts only if the fold says that its sender leads. leaving: it offers the lead."""
        if leader == folded_leader:
            self._heard = now
            self._leader_leaves = leaving

    def takeover_due(self, now: float) -> bool:
        """Whether it is time to ask for the lead: the leader is silent, or offers it."""
        return self._leader_leaves or self.is_silent(now)

    def is_silent(self, now: float) -> bool:
        """Whether the leader has not been heard for too long."""
        return now - self._heard > LEADER_SILENCE_S
