"""Sends the canaries of a gateway and reads their answers."""

import asyncio
import functools
import secrets
import time

from structlog.typing import FilteringBoundLogger

from services.gateway.core.canary import BUSY_CODES, Canaries, CanaryState, canary_request
from services.gateway.metrics import GatewayMetrics
from services.gateway.pipeline import Pipeline
from services.gateway.prompt_request import PromptRequest
from shared.errors import RequestError
from shared.messages.control import ModelCard
from shared.messages.pipeline import Delta, EndReason
from shared.reading.outcome import failure

TICK_S = 0.2
RANDOM_BYTES = 12


class CanaryProbe:
    """Looks five times a second at what the pipeline does for clients, and asks itself when it does nothing.

    owner: the gateway's incarnation. interval_s: see Canaries. A canary takes the same way as a client's request but
    for HTTP, and is in none of the gateway's vllm:* metrics, which count what clients ask.
    """

    def __init__(
        self, pipeline: Pipeline, metrics: GatewayMetrics, interval_s: float, owner: str, log: FilteringBoundLogger
    ) -> None:
        self.canaries = Canaries(interval_s)
        self._pipeline = pipeline
        self._metrics = metrics
        self._owner = owner
        self._log = log
        self._asking: set[asyncio.Task[None]] = set()
        self._request_ids: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._watching = asyncio.create_task(self._watch())
        self._pipeline.guard(self._watching)

    async def stop(self) -> None:
        """Send no more; what is on its way is cancelled."""
        tasks = [*self._asking, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def states(self) -> dict[str, CanaryState]:
        """Of each model, for /health."""
        return self.canaries.states(time.monotonic())

    # ---- when to ask

    async def _watch(self) -> None:
        while True:
            self._tick(time.monotonic())
            await asyncio.sleep(TICK_S)

    def _tick(self, now: float) -> None:
        pipeline, canaries = self._pipeline, self.canaries
        shard = pipeline.readiness.shard
        cards = {card.shown_as or card.name: card for card in pipeline.models.cards(now)}
        canaries.on_models(cards)
        if pipeline.readiness.missing(now):
            canaries.on_parts_missing()
        for model in cards:
            if canaries.on_tokens(model, self._metrics.of_model(model).num_generation_tokens, now):
                shard.on_work(now)
        for model in canaries.to_cancel(now, shard.advanced_at):
            pipeline.cancel(self._request_ids[model], pipeline.shard)
        if pipeline.readiness.missing(now):
            return
        num_readers = pipeline.hub.attachments.num_streams - canaries.num_in_flight
        for model in canaries.due(now, num_readers=num_readers, shard_advanced_at=shard.advanced_at):
            canaries.on_sent(model, now)
            task = asyncio.create_task(self._ask(model, cards[model]))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    # ---- asking

    async def _ask(self, model: str, card: ModelCard) -> None:
        """One canary from its sending to its end, whatever that is."""
        request = canary_request(card, secrets.token_hex(RANDOM_BYTES), self._owner, time.time())
        ended: asyncio.Future[EndReason | RequestError] = asyncio.get_running_loop().create_future()
        prompt = PromptRequest(self._pipeline, request, 1, functools.partial(_on_delta, ended))
        request_id = request.request_id or ""
        self._request_ids[model] = request_id
        sent_at = time.monotonic()
        error = ""
        try:
            async with asyncio.timeout(self.canaries.give_up_s):
                await prompt.start()
                end = await ended
            if isinstance(end, RequestError):
                raise end
            outcome = "busy" if end == "cancel" else "answered"
        except TimeoutError:
            outcome, error = "failed", "Nothing was heard of it."
        except RequestError as refused:
            is_busy = refused.code in BUSY_CODES or refused.status == 429
            outcome, error = "busy" if is_busy else "failed", f"{refused.status} {refused.message}"
        except Exception as unforeseen:
            self._log.exception("a canary failed", request_id=request_id)
            outcome, error = "failed", repr(unforeseen)
        finally:
            del self._request_ids[model]
            prompt.abandon()
        now = time.monotonic()
        if outcome == "answered":
            self.canaries.on_answered(model, now)
            self._pipeline.readiness.shard.on_work(now)
        elif outcome == "busy":
            self.canaries.on_busy(model, now, self._pipeline.readiness.shard.advanced_at)
        else:
            self.canaries.on_failed(model, error, now)
        log = self._log.warning if outcome == "failed" else self._log.debug
        log("canary", request_id=request_id, model=model, outcome=outcome, error=error, seconds=round(now - sent_at, 4))


def _on_delta(ended: "asyncio.Future[EndReason | RequestError]", delta: Delta, now: float) -> None:
    """The end of the canary; its token needs no look."""
    end = failure(delta) or delta.end
    if end is not None and not ended.done():
        ended.set_result(end)
