"""A client of one connection that can stop reading and leave, and that reads a stream up to a sign."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tests.waiting import LIMIT_S


def head_of(body: bytes) -> bytes:
    """A POST of a completion with this body."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Streaming:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def leave(self) -> None:
        """Close the connection."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def read_until(self, sign: bytes) -> bytes:
        """Everything up to and with this sign."""
        seen = bytearray()
        async with asyncio.timeout(LIMIT_S):
            while sign not in seen:
                part = await self.reader.read(2**16)
                if not part:
                    raise AssertionError(f"the stream ended after {bytes(seen[-300:])!r}")
                seen += part
        return bytes(seen)


Open = Callable[..., Awaitable[Streaming]]
