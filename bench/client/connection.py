"""One request on one connection: bytes out, events in, an Outcome at the end."""

import asyncio
import time

import httptools

from bench.core.events import EventReader, read_error
from bench.core.outcome import Outcome

MAX_ERROR_BYTES = 4096


class AnswerProtocol(asyncio.Protocol):
    """Sends the request as soon as it is connected. ended: done when the answer is over, well or not.

    zero_s: the start of the load by time.perf_counter.
    """

    def __init__(self, request: bytes, outcome: Outcome, zero_s: float) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._outcome = outcome
        self._zero_s = zero_s
        self._parser = httptools.HttpResponseParser(self)
        self._events = EventReader()
        self._error_body = b""
        self._num_new = 0
        self._is_over = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Connected."""
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """One read: all tokens in it have arrived now."""
        now = time.perf_counter() - self._zero_s
        self._num_new = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(now, f"no HTTP answer: {error}")
            return
        if self._num_new:
            self._on_arrival(now)
        if self._events.is_done or self._events.error or self._is_over:
            self._end(now, "")

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by either side."""
        self._end(time.perf_counter() - self._zero_s, str(exc) if exc else "the connection broke off")

    def _on_arrival(self, now: float) -> None:
        outcome = self._outcome
        if outcome.last_s is None:
            outcome.first_s = now
        else:
            outcome.gaps_s.append(now - outcome.last_s)
        outcome.last_s = now

    # ---- parser callbacks

    def on_body(self, body: bytes) -> None:
        """Part of the answer without its HTTP framing."""
        if self._parser.get_status_code() == 200:
            self._num_new += self._events.feed(body)
        elif len(self._error_body) < MAX_ERROR_BYTES:
            self._error_body += body

    def on_message_complete(self) -> None:
        """The whole answer was read."""
        self._is_over = True

    # ---- the end

    def _end(self, now: float, broken: str) -> None:
        if self.ended.done():
            return
        outcome, events = self._outcome, self._events
        outcome.ended_s = now
        outcome.num_events = events.num_events
        outcome.num_usage_tokens = events.num_usage_tokens
        outcome.finish_reason = events.finish_reason
        outcome.num_prompt_tokens = events.num_prompt_tokens or outcome.num_prompt_tokens
        outcome.status = self._parser.get_status_code()
        outcome.error, outcome.code = self._verdict(broken)
        self.ended.set_result(None)
        if self._transport is not None:
            self._transport.abort()

    def _verdict(self, broken: str) -> tuple[str, str]:
        """Why it failed and the server's code for it; two empty strings if it did not."""
        status, events = self._outcome.status, self._events
        if status not in (0, 200):
            message, code = read_error(self._error_body)
            return f"status {status}: {message}", code
        if events.error:
            return events.error, events.code
        if not events.is_done:
            return broken or "the stream ended without [DONE]", ""
        return "", ""


async def ask(address: tuple[str, int, bool], request: bytes, outcome: Outcome, zero_s: float, limit_s: float) -> None:
    """Send one request and fill in what became of it; ends after limit_s at the latest. Raises nothing of its own."""
    loop = asyncio.get_running_loop()
    host, port, is_tls = address
    protocol = None
    try:
        async with asyncio.timeout(limit_s):
            transport, protocol = await loop.create_connection(
                lambda: AnswerProtocol(request, outcome, zero_s), host, port, ssl=is_tls or None
            )
            await protocol.ended
    except (OSError, TimeoutError) as error:
        outcome.ended_s = time.perf_counter() - zero_s
        outcome.error = str(error) or f"no end within {limit_s:g} s"
        if protocol is not None:
            transport.abort()
