"""The tokenizer's process: takes requests, cancels and attachments of clients; one of many in a queue group.

It keeps no state that matters: whatever it has accepted is in the log.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from structlog.typing import FilteringBoundLogger

from services.tokenizer.attacher import Attacher
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.core.admission import ShardView
from services.tokenizer.core.prepare import check_request_id
from services.tokenizer.core.served_model import ModelLoadError, ServedModel, load_served_model
from services.tokenizer.intake import Intake
from services.tokenizer.metrics import TokenizerMetrics
from shared import subjects
from shared.bus.client import Bus, Subscription
from shared.bus.nats_log import NatsLog
from shared.bus.receiver import Receiver
from shared.errors import INVALID_REQUEST, RequestError, invalid, unavailable
from shared.log.cancel import append_cancel
from shared.log.port import Log, LogFull, LogUnavailable
from shared.messages.codec import WireError, client_decoder, encode
from shared.messages.control import (
    AttachRequest,
    Cancelled,
    CancelRequest,
    DetokenizerHeartbeat,
    LeaderHeartbeat,
    TokenizerHeartbeat,
)
from shared.messages.pipeline import Accepted, ErrorBody, GenerateRequest, Refused
from shared.refusals import TOO_MANY_REQUESTS
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository
from shared.service import EndpointCounts, Health, ServiceHost, StartError

HEARTBEAT_S = 0.25
LOG_INTERVAL_S = 1.0
LEAVE_RESERVE_S = 1.0
MAX_POSITIONS = 256
MAX_POSITION = 2**31 - 1

T = TypeVar("T")
Answer = Accepted | Refused | Cancelled


class TokenizerService:
    """One tokenizer. models: by the names that clients use."""

    def __init__(
        self,
        host: ServiceHost,
        config: TokenizerConfig,
        log: Log,
        models: dict[str, ServedModel],
        metrics: TokenizerMetrics,
    ) -> None:
        self._host = host
        self._config = config
        self._log = log
        self._models = models
        self._metrics = metrics
        self._bus: Bus = host.bus
        self._logger: FilteringBoundLogger = host.log
        self._view = ShardView(asyncio.get_running_loop().time())
        self._intake = Intake(config, models, log, self._view, lambda: self._bus.max_payload, metrics, host.log)
        self._attacher = Attacher(host.bus, config.shard, metrics)
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = {subject: EndpointCounts() for subject in _ENDPOINTS}
        self._logged_s = float("-inf")
        self._heard_leader = asyncio.Event()

    # ---- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until told to stop, then answer what was taken."""
        receiver = Receiver(self._bus, self._logger)
        shard = self._config.shard
        await receiver.on(subjects.leader_heartbeat(shard), LeaderHeartbeat, self._on_leader_heartbeat)
        await receiver.on(subjects.detokenizer_heartbeat(shard), DetokenizerHeartbeat, self._attacher.on_heartbeat)
        await self._hear_of_the_leader()
        intakes = [
            await self._take(subjects.INFER, GenerateRequest, self._on_generate),
            await self._take(subjects.CANCEL, CancelRequest, self._on_cancel),
            await self._take(subjects.CLIENT_ATTACH, AttachRequest, self._on_attach),
        ]
        for subject, name in _ENDPOINTS.items():
            self._host.add_stats(name, subject, partial(self._counts.__getitem__, subject), subjects.TOKENIZER_QUEUE)
        self._host.health = self._health
        heartbeats = asyncio.create_task(self._beat_for_ever())
        stopping = asyncio.create_task(self._host.stopping.wait())
        try:
            await asyncio.wait({heartbeats, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if heartbeats.done():
                heartbeats.result()
            for intake in intakes:
                await intake.unsubscribe()
            await self._finish_tasks()
        finally:
            leftover = [heartbeats, stopping, *self._tasks]
            for task in leftover:
                task.cancel()
            await asyncio.gather(*leftover, return_exceptions=True)
            self._intake.close()

    async def _finish_tasks(self) -> None:
        """Answer what was taken. Where the log is away some cannot be answered in time: then no answer is the right
        one, since the record may be stored, and clients that ask again by the same id get the same request."""
        loop = asyncio.get_running_loop()
        until = loop.time() + max(0.0, self._config.drain_timeout_s - LEAVE_RESERVE_S)
        hurrying = asyncio.create_task(self._host.hurrying.wait())
        while self._tasks and not hurrying.done() and (left_s := until - loop.time()) > 0:
            await asyncio.wait({*self._tasks, hurrying}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if self._tasks:
            self._logger.warning("requests are left without an answer", requests=len(self._tasks))

    async def _hear_of_the_leader(self) -> None:
        """Take no request before this process can judge it: a colleague may know already what it does not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.leader_timeout_s):
                await self._heard_leader.wait()

    async def _beat_for_ever(self) -> None:
        while True:
            cards = [model.card(self._view.max_model_len) for model in self._models.values()]
            heartbeat = TokenizerHeartbeat(tokenizer=self._host.name, models=cards)
            self._bus.publish(subjects.TOKENIZER_HEARTBEAT, encode(heartbeat))
            await asyncio.sleep(HEARTBEAT_S)

    def _health(self) -> Health:
        now = asyncio.get_running_loop().time()
        refusal = self._view.refusal(now, self._config.queue_limits, self._config.leader_timeout_s)
        details: dict[str, object] = {
            "models": {name: model.version for name, model in self._models.items()},
            "accepting": "yes" if refusal is None else refusal.message,
            "requests_in_flight": self._intake.num_in_flight,
        }
        return Health(True, details)

    # ---- messages of clients ----------------------------------------------------------------------------------------

    async def _take(
        self, subject: str, kind: type[T], handle: Callable[[T, str, str, int], Awaitable[Answer | None]]
    ) -> Subscription:
        """Subscribe in the queue group; handle(message, reply, style, bytes) gives the answer, if there is one."""
        decode = client_decoder(kind)

        def receive(_: str, reply: str, data: bytes, headers: bytes) -> None:
            counts = self._counts[subject]
            counts.num_requests += 1
            if reply and not subjects.is_inbox(reply):
                self._drop(subject, "reply subject is no inbox")
                return
            try:
                message, style = decode(data)
            except WireError as error:
                self._drop(subject, str(error))
                self._reply(reply, _malformed(error), "json" if data[:1] == b"{" else "msgpack")
                return
            if len(self._tasks) >= 2 * self._config.max_concurrent_requests:
                self._reply(reply, unavailable("Too many requests at once.", code=TOO_MANY_REQUESTS).refused(), style)
                return
            self._start(self._answer(subject, handle(message, reply, style, len(data)), reply, style))

        return await self._bus.subscribe(subject, receive, subjects.TOKENIZER_QUEUE)

    async def _answer(self, subject: str, handling: Awaitable[Answer | None], reply: str, style: str) -> None:
        counts = self._counts[subject]
        begun = asyncio.get_running_loop().time()
        try:
            answer = await handling
        except RequestError as error:
            answer = error.refused()
        counts.processing_time += int((asyncio.get_running_loop().time() - begun) * 1e9)
        if isinstance(answer, Refused):
            counts.num_errors += 1
            counts.last_error = f"{answer.status} {answer.error.code or answer.error.type}"
        if answer is not None:
            self._reply(reply, answer, style)

    async def _on_generate(self, generate: GenerateRequest, reply: str, style: str, num_bytes: int) -> Answer | None:
        if not reply:
            raise self._dropped(subjects.INFER, "request without a reply subject")
        request_id = secrets.token_hex(16) if generate.request_id is None else check_request_id(generate.request_id)
        answer = await self._intake.answer(generate, request_id, num_bytes)
        if not generate.attach or isinstance(answer, Refused):
            return answer
        self._reply(reply, answer, style)
        return await self._attacher.attach(request_id, reply, style)

    async def _on_cancel(self, cancel: CancelRequest, reply: str, style: str, num_bytes: int) -> Answer | None:
        request_id = check_request_id(cancel.request_id)
        try:
            await append_cancel(self._log, request_id)
        except (LogFull, LogUnavailable):
            raise unavailable("The log takes no cancel now.", code="log_unavailable") from None
        self._metrics.cancels.inc()
        return Cancelled(request_id=request_id)

    async def _on_attach(self, attach: AttachRequest, reply: str, style: str, num_bytes: int) -> Answer | None:
        if not reply:
            raise self._dropped(subjects.CLIENT_ATTACH, "attach without a reply subject")
        request_id = check_request_id(attach.request_id)
        positions = attach.positions
        if len(positions) > MAX_POSITIONS or not all(0 <= position <= MAX_POSITION for position in positions):
            raise invalid(f"positions must be at most {MAX_POSITIONS} token positions.", "positions")
        return await self._attacher.attach(request_id, reply, style, tuple(positions))

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _reply(self, inbox: str, answer: Answer, style: str) -> None:
        if inbox:
            self._bus.publish(inbox, msgspec.json.encode(answer) if style == "json" else encode(answer))

    def _dropped(self, subject: str, reason: str) -> RequestError:
        self._drop(subject, reason)
        return invalid(reason, None)

    def _drop(self, subject: str, reason: str) -> None:
        """Count what cannot be served, and log it at most once in LOG_INTERVAL_S."""
        self._metrics.malformed.labels(subject).inc()
        counts = self._counts[subject]
        counts.num_errors += 1
        counts.last_error = "malformed message"
        now = asyncio.get_running_loop().time()
        if now - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now
            self._logger.warning("message dropped", subject=subject, reason=reason[:200], errors=counts.num_errors)

    def _on_leader_heartbeat(self, heartbeat: LeaderHeartbeat, reply: str) -> None:
        self._view.on_heartbeat(heartbeat, asyncio.get_running_loop().time())
        self._heard_leader.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("handling a message failed", exc_info=task.exception())


_ENDPOINTS = {subjects.INFER: "infer", subjects.CANCEL: "cancel", subjects.CLIENT_ATTACH: "attach"}


def _malformed(error: WireError) -> Refused:
    body = ErrorBody(message=f"The message cannot be read: {str(error)[:200]}", type=INVALID_REQUEST)
    return Refused(error=body, status=400)


def load_models(config: TokenizerConfig) -> dict[str, ServedModel]:
    """The served models by name. Raises StartError with the reason an operator needs."""
    repository = ModelRepository(Path(config.model_repository) if config.model_repository else None)
    names = config.served_model_name or (config.model,)
    try:
        version = config.model_version
        stored = repository.open(config.model, version) if version else repository.ensure(config.model)
        model = load_served_model(stored, names[0], config.max_model_len)
        return {name: replace(model, name=name) for name in names}
    except (ModelError, ModelLoadError) as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError.of_path("--model-repository", repository.root, error) from error


async def serve(host: ServiceHost, config: TokenizerConfig) -> None:
    """Run a tokenizer until told to stop."""
    models = await asyncio.to_thread(load_models, config)
    log = await host.unless_stopping(NatsLog.find(host.bus, config.shard))
    if log is not None:
        await TokenizerService(host, config, log, models, TokenizerMetrics()).run()
