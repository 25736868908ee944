"""A gateway that is told to stop: what came is served, nothing more is taken, and who is left is told so (row 13)."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from services.gateway.http.server import IDLE_LINGER_S
from tests.gateway.conftest import Running
from tests.gateway.raw_stream import Open, Streaming, head_of
from tests.gateway.stand_in import Script
from tests.waiting import LIMIT_S, until

PROBE = b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n"
COMPLETION = head_of(b'{"model":"tiny","prompt":"hello"}')


class Kept(Streaming):
    """A connection that is kept between requests."""

    async def ask(self, request: bytes) -> bytes:
        """Send a request; its answer up to the first closing brace."""
        self.writer.write(request)
        return await self.read_until(b"}")

    async def is_closed(self) -> bool:
        """Whether the server says nothing more and closes it."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.read() == b""


async def keep(port: int) -> Kept:
    kept = Kept(*await asyncio.open_connection("127.0.0.1", port))
    assert b"200 OK" in await kept.ask(PROBE)
    return kept


@pytest.fixture
async def kept(running: Running) -> AsyncIterator[Kept]:
    kept = await keep(running.port)
    yield kept
    await kept.leave()


def start_drain(running: Running) -> "asyncio.Task[None]":
    running.host.stopping.set()
    return asyncio.create_task(running.gateway.drain())


async def test_what_runs_and_what_comes_on_open_connections_is_served(
    running: Running, open_stream: Open, kept: Kept
) -> None:
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    streaming = await open_stream()
    await streaming.read_until(b" w2")
    draining = start_drain(running)
    await until(lambda: not running.host.check_health().ready)
    running.stand_in.script = Script(num_tokens=2)
    answer = await kept.ask(COMPLETION)
    assert b"200 OK" in answer and b"connection: close" in answer
    assert await kept.is_closed(), "an answer that begins in the drain ends its connection"
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", running.port)
    running.stand_in.release()
    assert b" w5" in await streaming.read_until(b"[DONE]")
    await asyncio.wait_for(draining, LIMIT_S)


async def test_not_ready_while_draining(running: Running, open_stream: Open, kept: Kept) -> None:
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    streaming = await open_stream()
    await streaming.read_until(b" w2")
    draining = start_drain(running)
    assert b"503 Service Unavailable" in await kept.ask(PROBE)
    running.stand_in.release()
    await asyncio.wait_for(draining, LIMIT_S)


async def test_an_idle_connection_gets_a_moment_then_it_is_closed(running: Running, kept: Kept) -> None:
    began_s = asyncio.get_running_loop().time()
    draining = start_drain(running)
    assert await kept.is_closed()
    assert asyncio.get_running_loop().time() - began_s >= IDLE_LINGER_S
    await asyncio.wait_for(draining, LIMIT_S)


async def test_a_second_signal_ends_what_runs_and_refuses_what_comes(
    running: Running, open_stream: Open, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs gets an error event; a request whose body is still on its way gets 503 with Retry-After. Without the
    signal the drain would go on for longer than this test waits."""
    patient = replace(running.gateway._config, drain_timeout_s=10 * LIMIT_S)
    monkeypatch.setattr(running.gateway, "_config", patient)
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    streaming = await open_stream()
    await streaming.read_until(b" w2")
    num_tasks = len(running.gateway.server._state.tasks)
    kept.writer.write(COMPLETION[:-5])
    await until(lambda: len(running.gateway.server._state.tasks) > num_tasks, "a request half sent")
    draining = start_drain(running)
    running.host.hurrying.set()
    assert b"event: error" in await streaming.read_until(b"draining")
    answer = await kept.ask(COMPLETION[-5:])
    assert b"503" in answer and b"draining" in answer and b"retry-after: 1" in answer
    await asyncio.wait_for(draining, LIMIT_S)


async def test_the_drain_is_bounded(running: Running, open_stream: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.service.CLOSE_RESERVE_S", 29.9)
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    streaming = await open_stream()
    await streaming.read_until(b" w2")
    draining = start_drain(running)
    assert b"event: error" in await streaming.read_until(b"draining")
    await asyncio.wait_for(draining, LIMIT_S)
