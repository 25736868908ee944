"""Refusing early what the shard cannot take now, from the load in the leader's heartbeats (protocol rule 13)."""

from shared.errors import RequestError, unavailable
from shared.messages.control import LeaderHeartbeat, ShardLoad
from shared.queue_limits import QUEUE_FULL, QueueLimits
from shared.refusals import NO_SCHEDULER, NO_WORKER, STARTING

NO_WORKER_RETRY_S = 2.0
LEADER_SILENCE_S = 1.0
LOG_FULL_RETRY_S = 5.0
MAX_QUEUE_RETRY_S = 30.0
SECONDS_PER_QUEUED_REQUEST = 0.05
SECONDS_PER_QUEUED_TOKEN = 0.0002


class ShardView:
    """What a tokenizer knows of its shard.

    While the newest leader is heard of, a heartbeat of an older take-over is a former leader's and ignored.
    num_accepted and num_accepted_tokens count the requests accepted since the newest heartbeat, and the tokens of their
    prompts, which its load cannot hold yet.
    """

    def __init__(self, started_s: float) -> None:
        self.load: ShardLoad | None = None
        self.takeover = 0
        self.heard_s = started_s
        self.workers_seen_s = float("-inf")
        self.num_accepted = 0
        self.num_accepted_tokens = 0

    def on_heartbeat(self, heartbeat: LeaderHeartbeat, now_s: float) -> None:
        """Take the newest leader's word."""
        if heartbeat.takeover < self.takeover and now_s - self.heard_s < LEADER_SILENCE_S:
            return
        self.takeover = heartbeat.takeover
        self.load = heartbeat.load
        self.heard_s = now_s
        if heartbeat.load.num_workers > 0:
            self.workers_seen_s = now_s
        self.num_accepted = 0
        self.num_accepted_tokens = 0

    def on_accepting(self, num_prompt_tokens: int) -> None:
        """A request is on its way into the log."""
        self.num_accepted += 1
        self.num_accepted_tokens += num_prompt_tokens

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the workers take, in tokens; 0 if unknown."""
        return self.load.max_model_len if self.load is not None else 0

    def refusal(
        self, now_s: float, limits: QueueLimits, leader_timeout_s: float, num_prompt_tokens: int = 0
    ) -> RequestError | None:
        """Why a request is not accepted now, or None. num_prompt_tokens: 0 as long as they are not known.

        leader_timeout_s: silence of the scheduler that is borne, since the log keeps what is accepted while a new
        leader takes over. As long is it borne that all workers are gone: a new leader has none for a moment, and one
        that was started again is soon back.
        """
        if now_s - self.heard_s > leader_timeout_s:
            return unavailable("No scheduler is alive.", NO_WORKER_RETRY_S, NO_SCHEDULER)
        load = self.load
        if load is None:
            return unavailable("The service is starting.", NO_WORKER_RETRY_S, STARTING)
        if load.log_full:
            return unavailable("The log is full.", LOG_FULL_RETRY_S, "log_full")
        if load.num_workers < 1 and now_s - self.workers_seen_s > leader_timeout_s:
            return unavailable("No worker is alive.", NO_WORKER_RETRY_S, NO_WORKER)
        num_reqs = load.num_queued_reqs + self.num_accepted
        num_tokens = load.num_queued_tokens + self.num_accepted_tokens
        reason = limits.refusal(num_reqs, num_tokens, num_prompt_tokens)
        if reason is not None:
            return unavailable(reason, queue_retry_s(num_reqs, num_tokens, load.num_workers), QUEUE_FULL)
        return None


def queue_retry_s(num_reqs: int, num_tokens: int, num_workers: int) -> float:
    """A rough time until a full queue has room, in seconds."""
    work_s = max(num_reqs * SECONDS_PER_QUEUED_REQUEST, num_tokens * SECONDS_PER_QUEUED_TOKEN)
    return min(MAX_QUEUE_RETRY_S, 1.0 + work_s / max(1, num_workers))
