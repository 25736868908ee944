"""What stands behind the gateway: the bus, the log, the text of requests, and who is alive."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from services.gateway.core.model_directory import ModelDirectory
from services.gateway.core.readiness import Readiness
from services.gateway.presence import Presence
from shared import subjects
from shared.bus.client import Bus, Handler, Subscription
from shared.bus.nats_log import NatsLog
from shared.log.cancel import append_cancel
from shared.log.port import LogFull, LogUnavailable
from shared.messages.codec import WireError, decoder
from shared.messages.control import DetokenizerHeartbeat, LeaderHeartbeat, TokenizerHeartbeat
from shared.reading.hub import StreamHub

LOG_PROBE_S = 0.4

T = TypeVar("T")

_decode_leader: Callable[[bytes], LeaderHeartbeat] = decoder(LeaderHeartbeat)
_decode_tokenizer: Callable[[bytes], TokenizerHeartbeat] = decoder(TokenizerHeartbeat)
_decode_detokenizer: Callable[[bytes], DetokenizerHeartbeat] = decoder(DetokenizerHeartbeat)


class Pipeline:
    """Shared by all requests of a gateway. num_malformed: heartbeats that could not be decoded and were dropped."""

    def __init__(self, bus: Bus, shard: str, log: FilteringBoundLogger) -> None:
        self.bus = bus
        self.shard = shard
        self.hub = StreamHub(bus)
        self.readiness = Readiness()
        self.models = ModelDirectory()
        self.presence = Presence(bus, self.log_of, log)
        self.num_malformed = 0
        self._log = log
        self._logs: dict[str, NatsLog] = {}
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._probe: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen to heartbeats and to text."""
        await self.hub.start()
        await self.hub.follow(self.shard)
        for subject, handler in (
            (subjects.leader_heartbeat(self.shard), self._on_leader),
            (subjects.TOKENIZER_HEARTBEAT, self._on_tokenizer),
            (subjects.detokenizer_heartbeat(self.shard), self._on_detokenizer),
        ):
            self._subscriptions.append(await self.bus.subscribe(subject, self._tolerant(handler)))
        await self.presence.start()
        self._probe = asyncio.create_task(self._probe_log())
        self.guard(self._probe)

    async def stop(self, timeout_s: float) -> None:
        """Stop listening; cancellations on their way to the log get timeout_s to arrive."""
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        await self.presence.stop(timeout_s)
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        await self.hub.stop()

    def log_of(self, shard: str) -> NatsLog:
        """The log of a shard."""
        log = self._logs.get(shard)
        if log is None:
            log = self._logs[shard] = NatsLog(self.bus, shard)
        return log

    def cancel(self, request_id: str, shard: str) -> None:
        """Begin at once to write the request's end into the log; retried until it is stored."""
        self.spawn(self._append_cancel(request_id, shard))

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work that goes on whatever becomes of the client that it was begun for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def guard(self, watching: "asyncio.Task[None]") -> None:
        """A gateway that no longer knows whether it works must not live on: the end of this task is its own."""
        watching.add_done_callback(self._on_watching_over)

    def _on_watching_over(self, watching: "asyncio.Task[None]") -> None:
        if not watching.cancelled() and (error := watching.exception()) is not None:
            self.bus.fatal(error)

    async def _append_cancel(self, request_id: str, shard: str) -> None:
        try:
            await append_cancel(self.log_of(shard), request_id)
        except (LogFull, LogUnavailable) as error:
            self._log.error("a cancelled request goes on", request_id=request_id, error=str(error))

    async def _probe_log(self) -> None:
        while True:
            try:
                await self.log_of(self.shard).bounds()
                self.readiness.on_log(time.monotonic())
            except LogUnavailable as error:
                self._log.debug("the log does not answer", error=str(error))
            await asyncio.sleep(LOG_PROBE_S)

    # ---- heartbeats

    def _tolerant(self, handle: Callable[[bytes, float], None]) -> Handler:
        """A handler that counts and drops what cannot be decoded."""

        def handler(subject: str, reply: str, data: bytes, headers: bytes) -> None:
            try:
                handle(data, time.monotonic())
            except WireError:
                self.num_malformed += 1

        return handler

    def _on_leader(self, data: bytes, now: float) -> None:
        self.readiness.on_leader(_decode_leader(data), now)

    def _on_tokenizer(self, data: bytes, now: float) -> None:
        heartbeat = _decode_tokenizer(data)
        self.readiness.on_tokenizer(now)
        self.models.on_tokenizer(heartbeat, now)

    def _on_detokenizer(self, data: bytes, now: float) -> None:
        if not _decode_detokenizer(data).leaving:
            self.readiness.on_detokenizer(now)
