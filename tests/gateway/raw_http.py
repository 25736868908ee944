"""A client that says exactly the bytes it is told to, for requests that no HTTP library would send."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import LIMIT_S


@dataclass
class RawAnswer:
    """status 0: the connection ended without an answer. is_closed: the server ended it after the answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_closed: bool = False

    @property
    def error(self) -> dict[str, Any]:
        """The error object, once it has been checked to have OpenAI's four keys."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert self.headers["x-request-id"]
        return error


async def send_raw(port: int, data: bytes, more: bytes = b"", repeat: int = 0) -> RawAnswer:
    """Send data, then `more` repeat times, and read one answer. A server that stops reading early is fine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.ensure_future(_send(writer, data, more, repeat))
    try:
        async with asyncio.timeout(LIMIT_S):
            answer = await _read(reader)
            if answer.headers.get("connection") == "close" or not answer.status:
                await sending
                answer.is_closed = await _at_end(reader)
            return answer
    finally:
        sending.cancel()
        writer.close()


async def _send(writer: asyncio.StreamWriter, data: bytes, more: bytes, repeat: int) -> None:
    try:
        writer.write(data)
        for _ in range(repeat):
            writer.write(more)
            await writer.drain()
    except ConnectionError:
        return


async def _read(reader: asyncio.StreamReader) -> RawAnswer:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return RawAnswer()
    lines = head.decode("latin-1").split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return RawAnswer(int(lines[0].split(" ")[1]), headers, body)


async def _at_end(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
