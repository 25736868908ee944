"""The endpoints of requests: asking for text, reading it again, ending it."""

import functools
import random
import time

import msgspec

from services.gateway.config import GatewayConfig
from services.gateway.core.origin import derived_id, read_origin, shape_of
from services.gateway.core.preparation import Prepared, prepare
from services.gateway.core.request_headers import (
    LAST_EVENT_ID,
    Wishes,
    check_num_positions,
    id_in_path,
    keyed_request_id,
    read_positions,
    read_wishes,
)
from services.gateway.core.shape import answer_id
from services.gateway.finding import find, look
from services.gateway.generation import Generation
from services.gateway.http.exchange import Exchange
from services.gateway.http.routes import Routes
from services.gateway.keyed_request import KeyedRequest
from services.gateway.metrics import GatewayMetrics, ModelMetrics
from services.gateway.pipeline import Pipeline
from services.gateway.prompt_request import PromptRequest
from services.gateway.turnstile import Turnstile
from shared.errors import RequestError, invalid, unavailable
from shared.log.cancel import append_cancel
from shared.log.port import LogFull, LogUnavailable
from shared.reading.submission import new_request_id

PREFIX = "/v1/requests/"
STREAM = "/stream"
CANCEL_HORIZON_S = 5.0
CANCEL_WAIT_S = 0.5
# What has ended is there at once, but its client may read slowly.
READ_AGAIN_S = 60.0


class RequestEndpoints:
    """generations: the answers that are being given."""

    def __init__(self, config: GatewayConfig, pipeline: Pipeline, metrics: GatewayMetrics) -> None:
        self._config = config
        self._pipeline = pipeline
        self._metrics = metrics
        self._seeds = random.SystemRandom() if config.seed is None else random.Random(config.seed)
        self._turnstile = Turnstile()
        self.generations: set[Generation] = set()

    def add_to(self, routes: Routes) -> None:
        """Register all paths."""
        routes.add("POST", "/v1/completions", functools.partial(self._ask, chat=False))
        routes.add("POST", "/v1/chat/completions", functools.partial(self._ask, chat=True))
        routes.add("GET", PREFIX, self._read)
        routes.add("DELETE", PREFIX, self._cancel)

    # ---- asking

    async def _ask(self, exchange: Exchange, chat: bool) -> None:
        body = await exchange.read_json(self._config.max_body_bytes)
        await self._turnstile.enter()
        refusal = self._pipeline.readiness.refusal(time.monotonic())
        wishes = read_wishes(exchange.header, self._config.request_timeout_s)
        request_id = new_request_id()
        if wishes.key:
            request_id = keyed_request_id(exchange.header(b"authorization") or "", wishes.key)
        prepared = prepare(
            body,
            chat=chat,
            find_model=lambda name: self._pipeline.models.find(name, time.monotonic()),
            request_id=request_id,
            seed=self._seeds.getrandbits(63),
            now_s=time.time(),
            deadline_s=self._config.request_timeout_s,
            wishes=wishes,
            owner=self._pipeline.bus.name,
            traceparent=exchange.header(b"traceparent") or "",
        )
        if prepared.params.unknown:
            self._metrics.unknown_fields.inc(len(prepared.params.unknown))
        if wishes.key:
            await self._answer_keyed(exchange, prepared, wishes, refusal)
            return
        if refusal is not None:
            raise refusal
        generation = Generation(
            prepared.shape,
            [
                functools.partial(PromptRequest, self._pipeline, request, prepared.shape.n)
                for request in prepared.requests
            ],
            exchange,
            self._metrics.of_model(prepared.shape.model),
            deadline_s=prepared.requests[0].deadline_s,
            is_kept=wishes.keep_s > 0,
        )
        await self._run(generation)

    async def _answer_keyed(
        self, exchange: Exchange, prepared: Prepared, wishes: Wishes, refusal: RequestError | None
    ) -> None:
        """Find the key's request in the log, or send it; then read it like anybody, in the form that this body asks
        for."""
        began_at = time.monotonic()
        shape, positions = prepared.shape, wishes.positions
        if positions is not None and not shape.stream:
            raise invalid(f"{LAST_EVENT_ID} continues a stream: stream must be true.", LAST_EVENT_ID)
        if positions is not None:
            check_num_positions(positions, shape.num_choices)
        keyed = KeyedRequest(self._pipeline, prepared, may_send=positions is None)
        logged = await keyed.find_or_send(refusal)
        limit_s = None
        if wishes.timeout_s is not None and not keyed.was_sent:
            # The log tells of the deadline of whoever sent it, not of this client's.
            limit_s = max(0.0, wishes.timeout_s - (time.monotonic() - began_at))
        shape = msgspec.structs.replace(shape, created=logged.origin.created, model=logged.origin.model)
        generation = Generation(
            shape,
            logged.openers(self._pipeline, positions),
            exchange,
            self._metrics.of_model(shape.model) if keyed.was_sent else ModelMetrics(),
            deadline_s=wishes.timeout_s or max(logged.left_s(), READ_AGAIN_S),
            limit_s=limit_s,
            is_kept=True,
            positions=positions,
        )
        await self._run(generation)

    async def _run(self, generation: Generation) -> None:
        self.generations.add(generation)
        try:
            await generation.run()
        finally:
            self.generations.discard(generation)

    # ---- reading again

    async def _read(self, exchange: Exchange) -> None:
        """GET /v1/requests/{id}/stream: its text as events, from Last-Event-ID on."""
        if not exchange.path.endswith(STREAM):
            raise RequestError("There is nothing at this path.", code="not_found", status=404)
        if exchange.method == "HEAD":
            error = RequestError("HEAD is not allowed here.", code="method_not_allowed", status=405)
            await exchange.answer_error(error, [(b"allow", b"GET")])
            return
        request_id = id_in_path(exchange.path.removeprefix(PREFIX).removesuffix(STREAM))
        positions = read_positions(exchange.header)
        cut_off = self._pipeline.readiness.cut_off(time.monotonic())
        if cut_off is not None:
            raise cut_off
        logged = await find(self._pipeline, request_id)
        shape = shape_of(logged.origin, logged.prompts[0], request_id)
        if positions is not None:
            check_num_positions(positions, shape.num_choices)
        generation = Generation(
            shape,
            logged.openers(self._pipeline, positions),
            exchange,
            ModelMetrics(),
            deadline_s=max(logged.left_s(), READ_AGAIN_S),
            is_kept=logged.is_kept,
            positions=positions,
        )
        self._metrics.read_again.inc()
        await self._run(generation)

    # ---- ending

    async def _cancel(self, exchange: Exchange) -> None:
        """DELETE /v1/requests/{id}: end it for all its readers. What has ended stays as it is; for what is not there
        the end is logged all the same, and a request that comes later with this id has ended before it begins.

        How many prompts it has only the log knows, so a request on its way is waited for.
        """
        request_id = id_in_path(exchange.path.removeprefix(PREFIX))
        described = await look(self._pipeline, request_id, wait_s=CANCEL_WAIT_S)
        origin = read_origin(described)
        num_prompts = origin.num_prompts if described.found else 1
        if not described.forgotten:
            for index in range(num_prompts):
                await self._append_cancel(derived_id(request_id, index))
        await exchange.answer_json({"id": answer_id(request_id, origin.chat), "object": "request", "cancelled": True})

    async def _append_cancel(self, request_id: str) -> None:
        try:
            await append_cancel(self._pipeline.log_of(self._pipeline.shard), request_id, CANCEL_HORIZON_S)
        except (LogFull, LogUnavailable):
            raise unavailable("The log takes no cancel now; try again later.", code="log_unavailable") from None
