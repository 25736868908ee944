"""uvicorn's httptools protocol with the limits it lacks: sizes, counts, times, strict framing.

A request that exceeds a limit gets an answer in OpenAI's error shape and the end of the connection. The rest of what
its client sends is read and dropped for a moment, since closing a socket with unread data would reset the connection
and take the answer with it. While an answer is being streamed, the application writes its events straight to the
transport (write_chunk), so that a token costs no task switch.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from services.gateway.http import limits as check
from services.gateway.http.limits import Limits
from services.gateway.http.request_ids import choose_request_id
from shared.errors import RequestError

EXTENSION = "tokenbus.connection"


def _nothing() -> None:
    pass


class LimitedHttpProtocol(HttpToolsProtocol):
    """One client connection. on_refused(status) is called for requests that the application never sees.

    The exchange that owns the connection sets on_disconnect, and on_pause and on_resume while it streams: the client
    is gone; more than 64 KB wait for it; it has caught up.
    """

    def __init__(
        self, config: Config, server_state: ServerState, limits: Limits, on_refused: Callable[[int], None]
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self.access_log = False
        self._owner: object = None
        self.on_disconnect: Callable[[], object] = _nothing
        self.on_pause: Callable[[], object] = _nothing
        self.on_resume: Callable[[], object] = _nothing
        self._limits = limits
        self._max_head_bytes = limits.max_header_bytes + limits.max_target_bytes
        self._on_refused = on_refused
        self._timer: asyncio.TimerHandle | None = None
        self._awaits = "request"
        self._is_refused = False
        self._refusal: RequestError | None = None
        self._num_head_bytes = 0
        self._num_header_bytes = 0
        self._num_body_bytes = 0
        self._num_chunks = 0
        self._idle_since_s = self.loop.time()

    # ---- connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(self._limits.keep_alive_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.on_disconnect()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.on_pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.on_resume()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._awaits == "request":
            self._awaits = "head"
            self._set_timer(self._limits.header_timeout_s)
        if self._awaits == "head":
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._awaits == "head" and self._num_head_bytes > self._max_head_bytes:
            self._refusal = self._refusal or check.head_too_large(self._limits)
        if self._refusal is not None:
            self._refuse(self._refusal)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser gives up; an earlier finding of ours explains it better."""
        self._refuse(self._refusal or check.malformed())

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]
        self._num_body_bytes = self._num_chunks = 0
        self._num_header_bytes = 0

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > self._limits.max_target_bytes:
            self._refusal = self._refusal or check.target_too_long(self._limits)
            return
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_header_bytes += len(name) + len(value) + 4
        if self._num_header_bytes > self._limits.max_header_bytes or len(self.headers) >= self._limits.max_headers:
            self._refusal = self._refusal or check.head_too_large(self._limits)
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._awaits = "body"
        self._num_head_bytes = 0
        if self._refusal is None:
            self._refusal = check.check_head(self.headers, self.parser.get_http_version(), self._limits)
        if self._refusal is None:
            self._set_timer(self._limits.body_timeout_s)
            super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """The parser has read the size of a chunk."""
        self._num_chunks += 1
        if self._num_chunks > self._limits.max_chunks:
            self._refusal = self._refusal or check.body_too_large(self._limits)

    def on_body(self, body: bytes) -> None:
        self._num_body_bytes += len(body)
        if self._num_body_bytes > self._limits.max_body_bytes:
            self._refusal = self._refusal or check.body_too_large(self._limits)
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaits = "request"
        self._stop_timer()
        if self._refusal is None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since_s = self.loop.time()
        super().on_response_complete()

    # ---- refusing

    def _refuse(self, error: RequestError) -> None:
        """Answer with the error unless an answer is under way, then read and drop for linger_s, then close."""
        self._is_refused = True
        self._on_refused(error.status)
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            cycle.keep_alive = False
            self._stop_timer()
            return
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        self.transport.write(_answer(error, self.headers or []))
        self.flow.resume_reading()
        self._set_timer(self._limits.linger_s)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _on_timer(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_refused or self._awaits == "request":
            self.transport.close()
        else:
            self._refuse(check.too_slow())

    def _set_timer(self, delay_s: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(delay_s, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- for the application

    @property
    def is_refused(self) -> bool:
        """Whether the client has been told already that its request is refused."""
        return self._is_refused

    def is_idle_since(self, time_s: float) -> bool:
        """Whether no request was read or answered since this time of the event loop."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return self._awaits == "request" and is_answered and self._idle_since_s <= time_s

    def write_chunk(self, data: bytes) -> None:
        """Part of the body of an answer that has begun without a Content-Length; nothing after the client is gone."""
        if data and not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def take(self, owner: object, on_disconnect: Callable[[], object]) -> None:
        """An exchange begins."""
        self._owner = owner
        self.on_disconnect = on_disconnect

    def let_go(self, owner: object) -> None:
        """The exchange is over; the next one on this connection may have begun already."""
        if self._owner is owner:
            self._owner = None
            self.on_disconnect = self.on_pause = self.on_resume = _nothing


def _answer(error: RequestError, headers: list[tuple[bytes, bytes]]) -> bytes:
    body = msgspec.json.encode({"error": error.body()})
    request_id = choose_request_id(headers)
    lines: list[Any] = [
        STATUS_LINE[error.status],
        b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
        b"x-request-id: %b\r\nconnection: close\r\n\r\n" % request_id.encode(),
        body,
    ]
    return b"".join(lines)
