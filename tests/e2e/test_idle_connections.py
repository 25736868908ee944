"""A thousand connections that ask nothing and some that dawdle over their request cost a new request little."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlparse

import httpx
import pytest

from deploy.node.limits import raise_file_limit
from tests.e2e.latency import p99_in_turns
from tests.e2e.streams import connect
from tests.nodes import RunningNode

NUM_IDLE = 1000
NUM_SLOW = 50
DRIP_S = 0.2
NUM_REQUESTS = 300
NUM_AT_ONCE = 4
NUM_ROUNDS = 5
MAX_RATIO = 2.0
BODY = {"model": "smollm2-135m", "prompt": "one", "max_tokens": 1, "ignore_eos": True}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Slow: "


async def latencies_s(client: httpx.AsyncClient) -> list[float]:
    """Of some requests of one token, each on a connection of its own as a new client's."""
    limit = asyncio.Semaphore(NUM_AT_ONCE)

    async def one() -> float:
        async with limit:
            begun = time.perf_counter()
            answer = await client.post("/v1/completions", json=BODY, headers={"Connection": "close"})
            assert answer.status_code == 200, answer.text
            return time.perf_counter() - begun

    return await asyncio.gather(*(one() for _ in range(NUM_REQUESTS)))


async def drip(host: str, port: int) -> None:
    """A request whose head comes byte by byte; cut off by the gateway, it comes again."""
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(HEAD)
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(DRIP_S)
        except ConnectionError:
            continue
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def idle_and_slow(host: str, port: int) -> AsyncIterator[None]:
    """All of them, while the context lasts."""
    idle = await asyncio.gather(*(asyncio.open_connection(host, port) for _ in range(NUM_IDLE)))
    slow = [asyncio.create_task(drip(host, port)) for _ in range(NUM_SLOW)]
    try:
        yield
        assert not any(reader.at_eof() for reader, _ in idle), "the gateway closed an idle connection"
        assert not any(task.done() for task in slow)
    finally:
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        for _, writer in idle:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in idle), return_exceptions=True)


@pytest.mark.full
@pytest.mark.timeout(400)
async def test_idle_and_dawdling_connections_leave_a_new_requests_p99_under_twice(tmp_path: Path) -> None:
    raise_file_limit()
    with RunningNode(tmp_path / "node", "--engine", "fake", "--fake-step-ms", "2") as node:
        address = urlparse(node.url)
        host, port = address.hostname or "", address.port or 0
        async with connect(node.url) as client:
            control_s, burden_s, shown = await p99_in_turns(
                lambda: latencies_s(client), contextlib.nullcontext, lambda: idle_and_slow(host, port), NUM_ROUNDS
            )
    assert burden_s < MAX_RATIO * control_s, shown
