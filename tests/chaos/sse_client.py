"""A light client of streaming completions over raw sockets: one connection, its events, no HTTP library."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 1.0


class Choice(msgspec.Struct):
    """What we use of a choice."""

    text: str = ""
    token_ids: list[int] = []
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """What was billed."""

    completion_tokens: int = 0


class Event(msgspec.Struct):
    """What we use of an event."""

    id: str = ""
    choices: list[Choice] = []
    usage: Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(Event).decode

OnEvent = Callable[[int, Event], None]


class SseConnection(asyncio.Protocol):
    """Sends one request and calls on_event(position, event) for each event; position: from its `id:`, -1 without.

    status: of the answer, 0 before it came. is_whole: the stream ended with [DONE]. body: of an answer that is no
    stream. closed is set when nothing more comes. heard_at: when the last byte came.
    """

    def __init__(self, request: bytes, on_event: OnEvent) -> None:
        self.status = 0
        self.is_whole = False
        self.body = b""
        self.closed = asyncio.Event()
        self.heard_at = asyncio.get_running_loop().time()
        self._request = request
        self._on_event = on_event
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int, request: bytes, on_event: OnEvent) -> "SseConnection":
        """Connect and send. Raises OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(lambda: cls(request, on_event), LOOPBACK, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(self._request)  # type: ignore[union-attr]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    # ---- httptools calls these

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.status != 200:
            self.body += body
            return
        *events, self._tail = (self._tail + body).split(b"\n\n")
        for event in events:
            self._take(event)

    def on_message_complete(self) -> None:
        self.close()

    def _take(self, text: bytes) -> None:
        position = -1
        for line in text.split(b"\n"):
            if line.startswith(b"data: [DONE]"):
                self.is_whole = True
            elif line.startswith(b"data: "):
                self._on_event(position, _decode(line[6:]))
            elif line.startswith(b"id: "):
                position = int(line[4:])

    def close(self) -> None:
        """Leave, whatever comes."""
        self.closed.set()
        if self._transport is not None:
            self._transport.abort()


def post(body: dict[str, Any], headers: dict[str, str]) -> bytes:
    """A request for a streamed completion."""
    data = json.dumps(body).encode()
    return _head("POST /v1/completions", headers | {"Content-Type": "application/json"}, len(data)) + data


def resume(request_id: str, position: int) -> bytes:
    """A request for the rest of a stream of which position tokens were read."""
    headers = {"Last-Event-ID": str(position)} if position else {}
    return _head(f"GET /v1/requests/{request_id}/stream", headers, 0)


def _head(what: str, headers: dict[str, str], length: int) -> bytes:
    fixed = {"Host": LOOPBACK, "Accept": "text/event-stream", "Connection": "close", "Content-Length": str(length)}
    lines = [f"{what} HTTP/1.1", *(f"{name}: {value}" for name, value in (fixed | headers).items())]
    return "\r\n".join([*lines, "", ""]).encode()
