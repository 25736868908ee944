"""One request and its answer, as endpoints see them: a thin layer over ASGI and our own protocol."""

from collections.abc import Iterable
from typing import Any

import msgspec
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from services.gateway.core.body import check_content_type, decode_object, decompress
from services.gateway.http.protocol import EXTENSION, LimitedHttpProtocol
from services.gateway.http.request_ids import choose_request_id
from shared.errors import RequestError

Headers = list[tuple[bytes, bytes]]

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


RETRY_LATER = (429, 503)


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Exchange:
    """status: of the answer once it has begun, 0 before; 499 when the client went first. num_tokens: of prompts and of
    the text answered, for the access log; None where no text was asked for."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self.method = scope["method"]
        self.path = scope["path"]
        self.status = 0
        self.num_tokens: tuple[int, int] | None = None
        self._headers = scope["headers"]
        self._receive = receive
        self._send = send
        self.connection: LimitedHttpProtocol = scope["extensions"][EXTENSION]  # type: ignore[assignment]
        self.write_event = self.connection.write_chunk  # one or more whole events, straight to the transport
        self.request_id = choose_request_id(self._headers)

    def header(self, name: bytes) -> str | None:
        """The first header of this lower-case name."""
        for key, value in self._headers:
            if key == name:
                return value.decode("latin-1")
        return None

    async def read_json(self, max_bytes: int) -> dict[str, Any]:
        """The JSON object in the body. Raises RequestError and ClientGone."""
        check_content_type(self.header(b"content-type"))
        body = bytearray()
        more_body = True
        while more_body:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            body += message["body"]
            more_body = message["more_body"]
        return decode_object(decompress(bytes(body), self.header(b"content-encoding"), max_bytes))

    async def answer(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """The whole answer at once."""
        all_headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
        await self._start(status, all_headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def answer_json(self, value: object) -> None:
        """200 with a JSON body."""
        await self.answer(200, msgspec.json.encode(value))

    async def answer_error(self, error: RequestError, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """The error in OpenAI's shape."""
        extra = list(headers)
        if error.retry_after_s is not None or error.status in RETRY_LATER:
            extra.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s or 0))))
        await self.answer(error.status, msgspec.json.encode({"error": error.body()}), headers=extra)

    async def start_events(self) -> None:
        """Begin an answer of server-sent events; then write_event, then end_events."""
        await self._start(200, SSE_HEADERS)

    async def end_events(self, last: bytes) -> None:
        """The last events and the end of the answer."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        headers = [*headers, (b"x-request-id", self.request_id.encode("ascii"))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
