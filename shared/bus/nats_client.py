"""nats-py's client with a publish that leaves in the same turn, plain functions as handlers, and no dead ends.

nats-py hands each publish to a flusher task and each message to a queue and a task; at one message per engine step
and hop that is most of the cost. Here a handler is a plain function that is called as its message arrives (inbound.py),
and all that is published in one turn of the loop leaves with one write to the socket's transport, TCP or TLS alike: at
once when the handlers of what came in are done, else when the loop has run what was ready.

nats-py also closes for good on most errors that a server reports, and when it leaves a server it waits until that one
has read everything, which a stopped server never does. Here every error leads to a new connection, and a connection
that is given up is cut.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client as NatsClient

from shared.bus.inbound import InboundProtocol

Handler = Callable[[str, str, bytes, bytes], None]

MAX_WRITE_BUFFER_BYTES = 64 * 1024 * 1024
PERMISSIONS_VIOLATION = "permissions violation"


class DirectClient(NatsClient):
    """needs_tls: refuse a server that would talk in the clear, whatever it says."""

    def __init__(self, fatal: Callable[[BaseException], None], *, needs_tls: bool = False) -> None:
        super().__init__()
        self.handlers: dict[int, Handler] = {}
        self.fatal = fatal
        self._needs_tls = needs_tls
        self._inbound: InboundProtocol | None = None
        self._outgoing: list[bytes] = []
        self._num_outgoing_bytes = 0
        self._is_receiving = False

    def write_now(self, frame: bytes) -> bool:
        """Send a whole protocol frame in this turn of the loop; behind commands of nats-py's own that wait for its
        flusher. False: there is no connection, or more waits to be sent than ever should."""
        if self._status != NatsClient.CONNECTED:
            return False
        if self._pending:
            if self._pending_data_size > MAX_WRITE_BUFFER_BYTES:
                return False
            self._pending.append(frame)
            self._pending_data_size += len(frame)
            return True
        transport = self._socket()
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() + self._num_outgoing_bytes > MAX_WRITE_BUFFER_BYTES:
            return False
        if not self._outgoing and not self._is_receiving:
            asyncio.get_running_loop().call_soon(self.send_outgoing)
        self._outgoing.append(frame)
        self._num_outgoing_bytes += len(frame)
        return True

    def send_outgoing(self) -> None:
        """Hand what was written in this turn to the transport; without a connection it is lost."""
        if not self._outgoing:
            return
        outgoing, self._outgoing, self._num_outgoing_bytes = self._outgoing, [], 0
        transport = self._socket()
        if transport is not None and not transport.is_closing() and self._status == NatsClient.CONNECTED:
            transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def cut(self) -> None:
        """End the connection without waiting for the server to read what is on its way."""
        transport = self._socket()
        # asyncio up to Python 3.11.3 lets go of the protocol of a closed TLS transport: there is nothing to abort then
        if transport is not None and getattr(transport, "_ssl_protocol", transport) is not None:
            transport.abort()

    def forget_pending(self) -> None:
        """Drop what waits to be sent over a connection that is gone; nats-py would try to send it as it closes."""
        if self._status != NatsClient.CONNECTED:
            self._pending.clear()
            self._pending_data_size = 0

    def _socket(self) -> asyncio.WriteTransport | None:
        """The transport of the connection, which encrypts where TLS is on; None before the first connection."""
        writer = getattr(self._transport, "_io_writer", None)
        return None if writer is None else writer.transport

    # ---- what nats-py calls -----------------------------------------------------------------------------------------

    def _on_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        """Whether the message's subscription has a handler of ours."""
        handler = self.handlers.get(sid)
        if handler is None:
            return False
        try:
            handler(subject.decode(), reply.decode(), data, headers)
        except Exception as error:
            self.fatal(error)
        return True

    def _on_receiving(self, is_receiving: bool) -> None:
        """Messages begin to come in, or all that came are handled."""
        self._is_receiving = is_receiving
        if not is_receiving:
            self.send_outgoing()

    async def _read_loop(self) -> None:
        """Hand nats-py what is its own, until the connection ends."""
        inbound = self._inbound
        assert inbound is not None, "set as the connection is made"
        while not (self.is_closed or self.is_reconnecting):
            try:
                await self._ps.parse(await inbound.next_other())
            except Exception as error:
                await self._process_op_err(error)
                return

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._needs_tls and not info.get("tls_required"):
            raise nats.errors.Error("nats: the server does not offer TLS, and nothing is sent in the clear")
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        if PERMISSIONS_VIOLATION in err_msg.lower():
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        transport = self._socket()
        if transport is None:
            return
        if transport.get_extra_info("ssl_object") is not None:
            protocol: Any = transport.get_protocol()
            protocol._over_ssl = True  # as asyncio's own start_tls does; without it every end logs a warning
        self._take_over(transport)

    def _take_over(self, transport: Any) -> None:
        """From here on what arrives is cut here, beginning with what the stream has read already."""
        reader: Any = getattr(self._transport, "_io_reader", None)
        self._outgoing, self._num_outgoing_bytes = [], 0
        inbound = self._inbound = InboundProtocol(transport.get_protocol(), self._on_message, self._on_receiving)
        transport.set_protocol(inbound)
        if reader._buffer:
            inbound.data_received(bytes(reader._buffer))
            reader._buffer.clear()

    async def _connect_to_server(self, s: Any) -> None:
        self.cut()
        await super()._connect_to_server(s)

    async def _attempt_reconnect(self) -> None:
        self.cut()
        await super()._attempt_reconnect()
