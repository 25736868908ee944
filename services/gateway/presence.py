"""The gateway tells that it lives, and which kept requests it reads."""

import asyncio
import itertools
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from services.gateway.core.readership import Notice, Readership
from shared import subjects
from shared.bus.client import Bus, Subscription
from shared.log.port import Log, LogFull, LogUnavailable
from shared.messages.codec import encode
from shared.messages.control import GatewayHeartbeat
from shared.messages.pipeline import Reader

BEAT_S = 0.25
LATE_S = 1.0
# The leader's record that this gateway is gone may still be on its way when the gateway notices that it was away.
TELL_ONCE_MORE_S = 3.0
# A leader that missed this gateway's heartbeats, and nobody else's, took it for gone without its noticing. Well below
# the minute for which a request goes on unread.
TELL_EVERY_S = 15.0


def _answer_nothing(_subject: str, _reply: str, _data: bytes, _headers: bytes) -> None:
    """That somebody listens is all that is asked."""


class Presence:
    """Heartbeats and Reader records of one gateway."""

    def __init__(self, bus: Bus, log_of: Callable[[str], Log], log: FilteringBoundLogger) -> None:
        self._bus = bus
        self._log_of = log_of
        self._log = log
        self._readership = Readership()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._listening: Subscription | None = None
        self._beat_at = 0.0
        self._tell_again_at = float("inf")

    async def start(self) -> None:
        """Listen where the leader asks whether this gateway is on the bus, and begin to beat."""
        self._listening = await self._bus.subscribe(subjects.gateway(self._bus.name), _answer_nothing)
        self._bus.reconnect_hooks.append(self._on_reconnect)
        self._beat_at = time.monotonic()
        self._tell_again_at = self._beat_at + TELL_EVERY_S
        self._beat()

    async def stop(self, timeout_s: float) -> None:
        """Fall silent; records on their way to the log get timeout_s to arrive. Harmless when repeated."""
        until = time.monotonic() + timeout_s
        while self._tasks and (left_s := until - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._bus.reconnect_hooks.remove(self._on_reconnect)
        if self._listening is not None:
            listening, self._listening = self._listening, None
            await listening.unsubscribe()

    # ---- readers

    def join(self, request_id: str, shard: str, *, is_owner: bool) -> None:
        """A client begins to read a kept request. is_owner: the request was logged with this gateway as its owner."""
        self._readership.join(request_id, shard, is_owner=is_owner)
        self._tell()

    def leave(self, request_id: str, *, is_done: bool) -> None:
        """It reads no more. is_done: it has all of the text."""
        self._readership.leave(request_id, time.monotonic(), is_done=is_done)
        self._tell()

    def disown(self, request_id: str, shard: str) -> None:
        """A kept request was accepted from here, and its client had gone before."""
        self._readership.disown(request_id, shard, time.monotonic())
        self._tell()

    def _tell(self) -> None:
        for notice in self._readership.take_due():
            task = asyncio.create_task(self._write(notice))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write(self, notice: Notice) -> None:
        """One record; what has changed meanwhile follows it, so that records of a request stay in order."""
        record = Reader(request_id=notice.request_id, gateway=self._bus.name, reads=notice.reads)
        message_id = f"reader-{notice.request_id}-{self._bus.name}-{next(self._numbers)}"
        try:
            await self._log_of(notice.shard).append("end", encode(record), message_id)
        except (LogFull, LogUnavailable) as error:
            self._log.warning("the log does not know yet who reads", request_id=notice.request_id, error=str(error))
            self._readership.on_failed(notice)  # the next beat tries again
            return
        self._readership.on_told(notice)
        self._tell()

    # ---- time

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        now = time.monotonic()
        if now - self._beat_at > BEAT_S + LATE_S:
            self._log.warning("this process stood still", seconds=round(now - self._beat_at, 2))
            self._on_reconnect()
        self._beat_at = now
        self._bus.publish(subjects.GATEWAY_HEARTBEAT, encode(GatewayHeartbeat(gateway=self._bus.name)))
        if now >= self._tell_again_at:
            self._tell_again_at = now + TELL_EVERY_S
            self._readership.tell_again()
        self._readership.forget_left(now)
        self._tell()

    def _on_reconnect(self) -> None:
        """Nobody has heard this gateway for a while, and the leader may have given it up."""
        self._tell_again_at = time.monotonic() + TELL_ONCE_MORE_S
        self._readership.tell_again()
        self._tell()
