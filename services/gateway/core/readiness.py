"""Whether the pipeline behind this gateway can serve: its parts are heard of, and work gets done."""

from services.gateway.core.canary import Canaries
from services.gateway.core.shard_progress import ShardProgress
from shared.errors import RequestError, unavailable
from shared.messages.control import LeaderHeartbeat

FRESH_S = 1.0
GRACE_S = 3.0
RETRY_AFTER_S = 1.0
PARTS = ("log", "scheduler", "worker", "tokenizer", "detokenizer")


class Readiness:
    """What was heard of last, and when. Times are seconds of a monotonic clock.

    The probes tell the truth within FRESH_S. Requests are still taken for GRACE_S after that: what died is usually
    started again by then, and an accepted request waits in the log. They are taken, too, while nothing advances: that
    this gateway is not ready sends new clients elsewhere, and those who have no elsewhere wait in the log.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.is_log_full = False
        self.shard = ShardProgress()
        self._heard_at: dict[str, float] = {}

    def on_leader(self, heartbeat: LeaderHeartbeat, now: float) -> None:
        """The shard's scheduler leads, with some number of workers."""
        self._heard_at["scheduler"] = now
        self.is_log_full = heartbeat.load.log_full
        self.shard.on_load(heartbeat.takeover, heartbeat.load, now)
        if heartbeat.load.num_workers > 0:
            self._heard_at["worker"] = now

    def on_tokenizer(self, now: float) -> None:
        """A tokenizer serves."""
        self._heard_at["tokenizer"] = now

    def on_detokenizer(self, now: float) -> None:
        """A detokenizer serves."""
        self._heard_at["detokenizer"] = now

    def on_log(self, now: float) -> None:
        """The log has answered."""
        self._heard_at["log"] = now

    def missing(self, now: float, max_age_s: float = FRESH_S) -> list[str]:
        """Which parts were not heard of within max_age_s."""
        return [part for part in PARTS if now - self._heard_at.get(part, float("-inf")) > max_age_s]

    def lacks(self, now: float, canaries: Canaries) -> list[str]:
        """What keeps this gateway from being ready, empty if it is: parts not heard of; log_space, when the log is
        full; progress, when sequences run and nothing comes of it; canary, when no model has answered its last one."""
        lacks = self.missing(now)
        if self.is_log_full:
            lacks.append("log_space")
        if self.shard.is_stalled:
            lacks.append("progress")
        if not canaries.works(now):
            lacks.append("canary")
        return lacks

    def refusal(self, now: float) -> RequestError | None:
        """Why no request can be taken now (503), or None."""
        if self.is_draining:
            return unavailable("This server is shutting down; try again.", RETRY_AFTER_S, "draining")
        if self.is_log_full:
            return unavailable("The log is full; try again later.", RETRY_AFTER_S, "log_full")
        missing = self.missing(now, FRESH_S + GRACE_S)
        if missing:
            return unavailable(f"No {' and no '.join(missing)} is there; try again later.", RETRY_AFTER_S, "not_ready")
        return None

    def cut_off(self, now: float) -> RequestError | None:
        """Why nothing can be read here now (503), or None. A gateway that hears of no part at all is itself the one
        that is cut off: a reader that comes back must not wait here while other gateways can serve it."""
        if len(self.missing(now)) < len(PARTS):
            return None
        return unavailable("This gateway is cut off from the others; try again.", RETRY_AFTER_S, "not_ready")
