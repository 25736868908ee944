"""Refusing early what the shard cannot take now, from the load in the leader's heartbeats (protocol rule 13)."""

from shared.errors import RequestError, unavailable
from shared.messages.control import LeaderHeartbeat, ShardLoad

NO_WORKER_RETRY_S = 2.0
LEADER_SILENCE_S = 1.0
LOG_FULL_RETRY_S = 5.0
MAX_QUEUE_RETRY_S = 30.0
SECONDS_PER_WAITING_SEQUENCE = 0.05


class ShardView:
    """What a tokenizer knows of its shard.

    While the newest leader is heard of, a heartbeat of an older take-over is a former leader's and ignored.
    num_accepted counts the sequences accepted since the newest heartbeat, which its load cannot hold yet.
    """

    def __init__(self, started_s: float) -> None:
        self.load: ShardLoad | None = None
        self.takeover = 0
        self.heard_s = started_s
        self.num_accepted = 0

    def on_heartbeat(self, heartbeat: LeaderHeartbeat, now_s: float) -> None:
        """Take the newest leader's word."""
        if heartbeat.takeover < self.takeover and now_s - self.heard_s < LEADER_SILENCE_S:
            return
        self.takeover = heartbeat.takeover
        self.load = heartbeat.load
        self.heard_s = now_s
        self.num_accepted = 0

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the workers take, in tokens; 0 if unknown."""
        return self.load.max_model_len if self.load is not None else 0

    def refusal(self, now_s: float, max_num_queued: int, leader_timeout_s: float) -> RequestError | None:
        """Why nothing is accepted now, or None.

        max_num_queued: sequences that may wait. leader_timeout_s: silence of the scheduler that is borne, since
        the log keeps what is accepted while a new leader takes over.
        """
        if now_s - self.heard_s > leader_timeout_s:
            return unavailable("No scheduler is alive.", NO_WORKER_RETRY_S, "no_scheduler")
        load = self.load
        if load is None:
            return unavailable("The service is starting.", NO_WORKER_RETRY_S, "starting")
        if load.log_full:
            return unavailable("The log is full.", LOG_FULL_RETRY_S, "log_full")
        if load.num_workers < 1:
            return unavailable("No worker is alive.", NO_WORKER_RETRY_S, "no_worker")
        num_queued = load.num_waiting + self.num_accepted
        if num_queued >= max_num_queued:
            return unavailable("The queue is full.", queue_retry_s(num_queued, load.num_workers), "queue_full")
        return None


def queue_retry_s(num_queued: int, num_workers: int) -> float:
    """A rough time until a full queue has room, in seconds."""
    return min(MAX_QUEUE_RETRY_S, 1.0 + num_queued * SECONDS_PER_WAITING_SEQUENCE / max(1, num_workers))
