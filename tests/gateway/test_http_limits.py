"""Rows 6 to 9 of the bad inputs: the server itself refuses, in OpenAI's shape, with flat memory, and closes."""

import asyncio
import gzip
import resource
import zlib
from collections.abc import AsyncIterator

import pytest
import structlog

from services.gateway.http.exchange import Exchange
from services.gateway.http.limits import Limits
from services.gateway.http.routes import Routes
from services.gateway.http.server import HttpServer
from tests.gateway.raw_http import send_raw
from tests.waiting import LIMIT_S, until

MIB = 1024 * 1024
LIMITS = Limits(
    max_body_bytes=MIB, max_chunks=2000, header_timeout_s=0.3, body_timeout_s=0.3, keep_alive_s=1.0, linger_s=0.3
)
HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FLAT_MIB = 16
IDLE_MIB = 80  # for both ends of 2,000 connections


class Served:
    """A server whose only endpoint answers with the size of the JSON object it got."""

    def __init__(self) -> None:
        self.refused: list[int] = []
        self.answered: list[int] = []
        routes = Routes(structlog.get_logger(), lambda exchange: self.answered.append(exchange.status))
        routes.add("POST", "/echo", self._echo)
        routes.add("GET", "/slow", self._slow)
        self.server = HttpServer(routes, "127.0.0.1", 0, LIMITS, self.refused.append)

    async def _echo(self, exchange: Exchange) -> None:
        value = await exchange.read_json(LIMITS.max_body_bytes)
        await exchange.answer_json({"keys": len(value)})

    async def _slow(self, exchange: Exchange) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start()
    yield served
    await served.server.stop(0)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def with_length(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_a_good_request(served: Served) -> None:
    answer = await send_raw(served.server.port, with_length(b'{"a":1}', HEAD + b"X-Request-Id: mine\r\n"))
    assert (answer.status, answer.body, answer.headers["x-request-id"]) == (200, b'{"keys":1}', "mine")


async def test_a_gzipped_request(served: Served) -> None:
    data = with_length(gzip.compress(b'{"a":1}'), HEAD + b"Content-Encoding: gzip\r\n")
    assert (await send_raw(served.server.port, data)).status == 200


def gzip_bomb(num_mib: int) -> bytes:
    """Packed in small pieces, so that the test itself needs no memory."""
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(b"[" * MIB) for _ in range(num_mib))
    return packed + packer.flush()


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

TOO_LARGE = {
    "row 6, declared length": (HEAD + b"Content-Length: 67108864\r\n\r\n", b"x" * MIB, 64, 413),
    "row 6, length of 30 digits": (HEAD + b"Content-Length: %b\r\n\r\n" % (b"9" * 30), b"", 0, 400),
    "row 6, chunked body over the cap": (CHUNKED, b"%x\r\n%b\r\n" % (MIB // 8, b"x" * (MIB // 8)), 64, 413),
    "row 6, a million chunks": (CHUNKED, b"1\r\nx\r\n" * 10_000, 100, 413),
    "row 6, gzip bomb": (with_length(gzip_bomb(400), HEAD + b"Content-Encoding: gzip\r\n"), b"", 0, 413),
    "row 7, one header over 16 KB": (HEAD + b"X: %b\r\n\r\n" % (b"a" * 17_000), b"", 0, 431),
    "row 7, headers together over 16 KB": (HEAD + b"X: %b\r\n" % (b"a" * 1000) * 20 + b"\r\n", b"", 0, 431),
    "row 7, a header without an end": (HEAD + b"X: ", b"a" * 65536, 100, 431),
    "row 7, 101 headers": (HEAD + b"X: 1\r\n" * 101 + b"\r\n", b"", 0, 431),
    "row 7, target over 8 KB": (b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 9000), b"", 0, 414),
}


@pytest.mark.parametrize(("data", "more", "repeat", "status"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
async def test_too_large(data: bytes, more: bytes, repeat: int, status: int, served: Served) -> None:
    before = peak_mib()
    answer = await send_raw(served.server.port, data, more, repeat)
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"
    assert answer.is_closed or b"gzip" in data
    assert peak_mib() - before < FLAT_MIB
    assert (await send_raw(served.server.port, with_length(b"{}"))).status == 200


FRAMING = {
    "row 8, host with a slash": b"GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "row 8, host with a question mark": b"GET /echo HTTP/1.1\r\nHost: a?b\r\n\r\n",
    "row 8, host with a hash": b"GET /echo HTTP/1.1\r\nHost: a#b\r\n\r\n",
    "row 8, no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "row 8, two hosts": b"GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "row 8, length and chunked": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n")
    + b"2\r\n{}\r\n0\r\n\r\n",
    "row 8, chunked and length": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "row 8, two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "row 8, a signed length": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "row 8, unknown transfer encoding": HEAD + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "row 8, no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "row 8, a path that is not ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "row 8, a bad chunk size": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("data", FRAMING.values(), ids=FRAMING.keys())
async def test_bad_framing(data: bytes, served: Served) -> None:
    answer = await send_raw(served.server.port, data)
    assert (answer.status, answer.is_closed) == (400, True)
    assert answer.error["type"] == "invalid_request_error"
    assert served.refused == [400]


SLOW = {
    "row 9, half a request line": b"POST /ec",
    "row 9, half a header": b"POST /echo HTTP/1.1\r\nHost: a\r\nX: ",
    "row 9, half a body": HEAD + b"Content-Length: 20\r\n\r\n{",
    "row 9, half a chunk": CHUNKED + b"5\r\n{",
    "row 9, no last chunk": CHUNKED + b"2\r\n{}\r\n",
    "row 9, nothing but blank lines": b"\r\n",
}


@pytest.mark.parametrize("data", SLOW.values(), ids=SLOW.keys())
async def test_slow_clients(data: bytes, served: Served) -> None:
    answer = await send_raw(served.server.port, data)
    assert (answer.status, answer.is_closed) == (408, True)
    assert answer.error["code"] == "request_timeout"
    assert served.refused == [408]


async def test_row_9_drop_by_drop(served: Served) -> None:
    """A byte now and then does not extend the time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)

    async def drip() -> None:
        while True:
            writer.write(b"X")
            await asyncio.sleep(0.02)

    writer.write(b"GET /echo HTTP/1.1\r\n")
    dripping = asyncio.ensure_future(drip())
    try:
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
    finally:
        dripping.cancel()
        writer.close()


async def test_idle_connections_are_closed_silently(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    writer.close()
    assert served.refused == []


async def test_2000_idle_connections(served: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    before = peak_mib()
    writers = [(await asyncio.open_connection("127.0.0.1", served.server.port))[1] for _ in range(2000)]
    assert (await send_raw(served.server.port, with_length(b"{}"))).status == 200
    assert peak_mib() - before < IDLE_MIB
    for writer in writers:
        writer.close()


async def test_keep_alive_and_pipelining(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    writer.write(with_length(b"{}") + with_length(b'{"a":1}') + with_length(b'{"a":1,"b":2}'))
    async with asyncio.timeout(LIMIT_S):
        for keys in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(len(b'{"keys":0}')) == b'{"keys":%d}' % keys
    writer.close()


async def test_row_47_client_gone(served: Served) -> None:
    """The endpoint is cancelled where it waits, and the exchange counts as 499."""
    _, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    writer.write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
    await writer.drain()
    writer.close()
    await until(lambda: bool(served.answered))
    assert served.answered == [499]


async def test_row_48_paths_and_methods(served: Served) -> None:
    answer = await send_raw(served.server.port, b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    answer = await send_raw(served.server.port, b"DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (answer.status, answer.headers["allow"], answer.error["code"]) == (405, "POST", "method_not_allowed")
