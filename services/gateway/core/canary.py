"""When to send a canary, and what its answer says: a real request of one token, for times in which nobody else asks.

Heartbeats tell that processes live, not that work gets done. Text that reaches this gateway's clients does; in its
absence a canary goes the whole way: tokenizer, log, scheduler, worker, log, detokenizer, and back into this gateway's
inbox. Times are seconds of a monotonic clock.
"""

from collections.abc import Iterable

import msgspec

from services.gateway.core.shard_progress import Pace
from shared.messages.control import ModelCard
from shared.messages.pipeline import PROTOCOL_VERSION, GenerateRequest
from shared.queue_limits import QUEUE_FULL
from shared.refusals import TOO_MANY_REQUESTS

ID_PREFIX = "00000000"  # begins the ids of canaries and of no other request, so that logs and bills can tell them apart
PROMPT = "ping"
FIRST_PRIORITY = -(2**31 - 1)
DEADLINE_S = 30.0
RETRY_S = 1.0
RETURN_S = 1.0
GIVE_UP_S = 12.0
BUSY_CODES = frozenset({QUEUE_FULL, TOO_MANY_REQUESTS})


def canary_request(card: ModelCard, random_hex: str, owner: str, now_s: float) -> GenerateRequest:
    """The request. random_hex: 24 hex digits. owner: this gateway's incarnation, with which it ends. now_s: Unix time.

    It goes before what waits, since it asks whether work gets done and not how long the queue is.
    """
    return GenerateRequest(
        v=PROTOCOL_VERSION,
        model=card.name,
        prompt=PROMPT,
        params={"max_tokens": 1, "temperature": 0},
        deadline_s=DEADLINE_S,
        request_id=ID_PREFIX + random_hex,
        attach=False,
        priority=FIRST_PRIORITY,
        seed_default=0,
        created_s=now_s,
        owner=owner,
    )


class CanaryState(msgspec.Struct):
    """What /health shows of a model's canary. age_s: since text or a canary's answer came last; waiting_s: for how
    long the one on its way has been; error: why the last one failed, "" if it did not."""

    works: bool
    age_s: float | None
    waiting_s: float | None
    error: str


class _Watch:
    """One model. is_proven: it has worked since the pipeline's parts were last missing."""

    def __init__(self) -> None:
        self.is_proven = False
        self.proved_at = float("-inf")
        self.tried_at = float("-inf")
        self.sent_at: float | None = None
        self.is_cancelled = False
        self.error = ""
        self.num_tokens = 0

    def prove(self, now: float) -> None:
        self.is_proven = True
        self.proved_at = now
        self.error = ""

    def end(self) -> None:
        self.sent_at = None
        self.is_cancelled = False


class Canaries:
    """One canary at a time for each model, and only while no text comes.

    interval_s: seconds without a sign of work after which one is sent; 0 sends none, and nothing is judged by them.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.num_sent = 0
        self.num_failed = 0
        self._pace = Pace()
        self._watches: dict[str, _Watch] = {}

    @property
    def num_in_flight(self) -> int:
        """Canaries on their way."""
        return sum(watch.sent_at is not None for watch in self._watches.values())

    @property
    def patience_s(self) -> float:
        """How long a canary may take before its model counts as not working."""
        return self._pace.patience_s

    # ---- what happens

    def on_models(self, models: Iterable[str]) -> None:
        """The models that are served now."""
        known = set(models)
        for model in known - self._watches.keys():
            self._watches[model] = _Watch()
        for model in self._watches.keys() - known:
            del self._watches[model]

    def on_tokens(self, model: str, num_tokens: int, now: float) -> bool:
        """Tokens that clients have got of this model so far; whether that is more than before."""
        watch = self._watches[model]
        has_grown = num_tokens > watch.num_tokens
        watch.num_tokens = num_tokens
        if has_grown:
            watch.prove(now)
        return has_grown

    def on_parts_missing(self) -> None:
        """Nothing can work: what comes back must show that it does."""
        for watch in self._watches.values():
            watch.is_proven = False

    def on_sent(self, model: str, now: float) -> None:
        """A canary left."""
        watch = self._watches[model]
        watch.sent_at = watch.tried_at = now
        self.num_sent += 1

    def on_answered(self, model: str, now: float) -> None:
        """Its token came."""
        watch = self._watches.get(model)
        if watch is not None and watch.sent_at is not None:
            self._pace.on_done(now - watch.sent_at)
            watch.end()
            watch.prove(now)

    def on_busy(self, model: str, now: float, shard_advanced_at: float) -> None:
        """It was refused for the length of the queue, or waited in vain while others were served: proof of work if
        the shard does some, and nothing at all if not."""
        watch = self._watches.get(model)
        if watch is not None:
            watch.end()
            if now - shard_advanced_at <= self.patience_s:
                watch.prove(now)

    def on_failed(self, model: str, error: str, now: float) -> None:
        """It was refused, ended with an error, or given up."""
        watch = self._watches.get(model)
        if watch is not None:
            watch.end()
            watch.error = error
            watch.tried_at = now
            self.num_failed += 1

    # ---- what to do

    def due(self, now: float, *, num_readers: int, shard_advanced_at: float) -> list[str]:
        """Models to send a canary for now. num_readers: requests of clients that this gateway reads.

        While the shard's frames grow, none is needed; unless clients wait here all the same: then only a canary tells
        a long queue from text that never comes.
        """
        if self.interval_s <= 0:
            return []
        is_at_work = num_readers == 0 and now - shard_advanced_at < self.interval_s
        return [model for model, watch in self._watches.items() if self._is_due(watch, now, is_at_work)]

    def _is_due(self, watch: _Watch, now: float, is_at_work: bool) -> bool:
        if watch.sent_at is not None:
            return False
        if watch.error or not watch.is_proven:
            return now - watch.tried_at >= min(RETRY_S, self.interval_s)
        return not is_at_work and now - max(watch.proved_at, watch.tried_at) >= self.interval_s

    def to_cancel(self, now: float, shard_advanced_at: float) -> list[str]:
        """Models whose canary waits while others are served. Its cancel is a question of its own: the end that it
        makes takes the same way back, so that a way that is broken shows although the shard is busy. Each is named
        once."""
        found = []
        for model, watch in self._watches.items():
            if watch.sent_at is None or watch.is_cancelled or shard_advanced_at <= watch.sent_at:
                continue
            if now - watch.sent_at >= self.patience_s - RETURN_S:
                watch.is_cancelled = True
                found.append(model)
        return found

    @property
    def give_up_s(self) -> float:
        """When to end a canary that nothing is heard of. Long after its model counts as not working: until then it
        waits in the log, and its answer is the first sign of a recovery."""
        return self.patience_s + GIVE_UP_S

    # ---- what it says

    @property
    def failing(self) -> list[str]:
        """Models whose last canary failed."""
        return sorted(model for model, watch in self._watches.items() if watch.error)

    def works(self, now: float) -> bool:
        """Whether any model works: one that does not must not take the others down with it."""
        return self.interval_s <= 0 or any(self._works(watch, now) for watch in self._watches.values())

    def _works(self, watch: _Watch, now: float) -> bool:
        is_overdue = watch.sent_at is not None and now - max(watch.sent_at, watch.proved_at) > self.patience_s
        return watch.is_proven and not watch.error and not is_overdue

    def states(self, now: float) -> dict[str, CanaryState]:
        """By model, for people."""
        return {
            model: CanaryState(
                works=self._works(watch, now),
                age_s=round(now - watch.proved_at, 3) if watch.proved_at > float("-inf") else None,
                waiting_s=round(now - watch.sent_at, 3) if watch.sent_at is not None else None,
                error=watch.error,
            )
            for model, watch in self._watches.items()
        }
