"""The bus: nats-py with a publish that leaves in the same call and handlers that are called from the read loop.

nats-py hands each publish to a flusher task and each message to a queue and a task; at one message per engine step
and hop that is most of the cost. Here a publish writes to the socket's transport, which sends at the end of the
loop's turn, and a handler is a plain function. Connections are retried for ever; what is published meanwhile is lost,
as on any core NATS subject, and the protocol repairs it.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from shared.bus.cancellation import cancellation_kept
from shared.bus.errors import BusError, NoResponders, NotConnected, PayloadTooLarge

Handler = Callable[[str, str, bytes, bytes], None]

RECONNECT_WAIT_S = 0.05
CONNECT_TIMEOUT_S = 1
PING_INTERVAL_S = 2
MAX_WRITE_BUFFER_BYTES = 64 * 1024 * 1024

_logger = logging.getLogger(__name__)


def _die(error: BaseException) -> None:
    """A handler failed: the state of this process can no longer be trusted, and the log has the truth."""
    _logger.critical("a message handler failed; the process ends", exc_info=error)
    os._exit(70)


class _Client(NatsClient):
    """nats-py's client, dispatching to plain functions where one is registered."""

    def __init__(self, fatal: Callable[[BaseException], None]) -> None:
        super().__init__()
        self.handlers: dict[int, Handler] = {}
        self.fatal = fatal

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self.handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            handler(
                subject.decode(), reply.decode(), data, headers or b""
            )  # None without headers, whatever the annotation says
        except Exception as error:
            self.fatal(error)

    def write_now(self, frame: bytes) -> bool:
        """Hand a whole protocol frame to the transport; behind commands of nats-py's own that wait for its flusher."""
        if self._status != NatsClient.CONNECTED:
            return False
        if self._pending:
            if self._pending_data_size > MAX_WRITE_BUFFER_BYTES:
                return False
            self._pending.append(frame)
            self._pending_data_size += len(frame)
            return True
        transport: asyncio.WriteTransport = self._transport._io_writer.transport  # type: ignore[union-attr]
        if transport.is_closing() or transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES:
            return False
        transport.write(frame)
        return True


class Subscription:
    """A handler's place on a subject."""

    def __init__(self, client: _Client, inner: Any) -> None:
        self._client = client
        self._inner = inner

    async def unsubscribe(self) -> None:
        """Stop handling; harmless when repeated or after the connection is closed."""
        if self._client.handlers.pop(self._inner._id, None) is None:
            return
        try:
            await self._inner.unsubscribe()
        except (nats.errors.Error, ValueError) as error:
            _logger.debug("unsubscribe after close: %s", error)


class Bus:
    """One connection to NATS. Create with Bus.connect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reconnect_hooks: list[Callable[[], None]] = []
        self.fatal: Callable[[BaseException], None] = _die
        self._client = _Client(self._fail)

    @classmethod
    async def connect(cls, url: str, name: str) -> "Bus":
        """Connect, waiting for the server as long as it takes. name: shown by the server's monitoring; its part up to
        the first dash is the prefix of the inboxes, so that permissions can be given per role."""
        bus = cls(name)
        while True:
            try:
                await bus._open(url)
                return bus
            except (TimeoutError, nats.errors.Error, OSError) as error:
                _logger.debug("no server at the bus yet: %s", error)
                await asyncio.sleep(RECONNECT_WAIT_S)
                bus._client = _Client(bus._fail)

    async def _open(self, url: str) -> None:
        await self._client.connect(
            url,
            name=self.name,
            inbox_prefix=f"_INBOX.{self.name.partition('-')[0]}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # only ever slept for
            connect_timeout=CONNECT_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
        )

    def _fail(self, error: BaseException) -> None:
        self.fatal(error)

    async def _on_error(self, error: Exception) -> None:
        _logger.debug("bus: %s", error)

    async def _on_disconnected(self) -> None:
        _logger.info("bus disconnected")

    async def _on_reconnected(self) -> None:
        _logger.info("bus reconnected")
        for hook in self.reconnect_hooks:
            hook()

    @property
    def is_connected(self) -> bool:
        """Whether a publish would leave now."""
        return bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """The server's limit in bytes for headers and data of one message."""
        return int(self._client.max_payload)

    def publish(self, subject: str, data: bytes, reply: str = "", headers: bytes = b"") -> bool:
        """Publish in this call. headers: a whole header block beginning with NATS/1.0. False: not connected, lost.

        Raises PayloadTooLarge before anything is sent.
        """
        size = len(headers) + len(data)
        if size > self.max_payload:
            raise PayloadTooLarge(size, self.max_payload)
        if headers:
            head = f"HPUB {subject} {reply} {len(headers)} {size}\r\n"
        else:
            head = f"PUB {subject} {reply} {size}\r\n" if reply else f"PUB {subject} {size}\r\n"
        return self._client.write_now(b"%b%b%b\r\n" % (head.encode(), headers, data))

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Call handler(subject, reply, data, headers) for each message, in order, from the read loop."""

        async def unused(message: Msg) -> None:
            raise AssertionError("messages of this subscription go to its handler")

        inner = await self._client.subscribe(subject, queue=queue, cb=unused)
        self._client.handlers[inner._id] = handler
        return Subscription(self._client, inner)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """The first reply. Raises NoResponders at once if nobody listens, TimeoutError, NotConnected and
        PayloadTooLarge."""
        if len(data) > self.max_payload:
            raise PayloadTooLarge(len(data), self.max_payload)
        if not self.is_connected:
            raise NotConnected("not connected")
        try:
            with cancellation_kept():
                return bytes((await self._client.request(subject, data, timeout=timeout_s)).data)
        except nats.errors.NoRespondersError:
            raise NoResponders(subject) from None
        except (TimeoutError, nats.errors.TimeoutError):
            raise TimeoutError(f"no reply on {subject} within {timeout_s} s") from None
        except (nats.errors.Error, OSError) as error:
            raise NotConnected(str(error)) from error

    def new_inbox(self) -> str:
        """A subject for replies to this process alone."""
        return str(self._client.new_inbox())

    def jetstream(self, timeout_s: float) -> JetStreamContext:
        """nats-py's JetStream context; used only within shared.bus."""
        return self._client.jetstream(timeout=timeout_s)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has seen all that was published and subscribed. Raises BusError if it does not answer.

        nats-py's own flush lets its ping overtake a subscription that waits for the flusher; hence the first line.
        """
        try:
            await self._client._flush_pending(force_flush=True)
            await self._client.flush(timeout=timeout_s)  # type: ignore[arg-type]  # the type says int, a float works
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise BusError(f"flush: {error}") from error

    async def close(self) -> None:
        """Close the connection for good."""
        await self._client.close()
