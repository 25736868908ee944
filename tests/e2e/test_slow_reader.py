"""Clients that do not read what they asked for leave the others' pace as it was."""

import asyncio
import contextlib
import functools
import itertools
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.e2e.latency import p99_in_turns
from tests.e2e.probes import metric, probe
from tests.e2e.streams import connect, stream
from tests.nodes import RunningNode
from tests.waiting import until

MODEL = "smollm2-135m"
NUM_NEIGHBOURS = 8
NUM_OTHERS = 4
NUM_CHOICES = 4
NUM_TOKENS = 150
NUM_ROUNDS = 9
MAX_RATIO = 1.2
BUFFER_BYTES = 4096
# Twenty alternatives of each token, and of four choices, so that the sockets' buffers are full after seconds.
OTHERS_BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "slow"}],
    "max_tokens": 4000,
    "n": NUM_CHOICES,
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 20,
    "stream": True,
}
NEIGHBOURS_BODY = {"model": MODEL, "prompt": "fast", "max_tokens": NUM_TOKENS, "ignore_eos": True}


async def gaps_s(url: str) -> list[float]:
    """Between the events of the neighbours' streams."""
    async with connect(url) as client:
        tasks = (stream(client, "/v1/completions", NEIGHBOURS_BODY) for _ in range(NUM_NEIGHBOURS))
        answers = await asyncio.gather(*tasks)
    assert all(answer.whole for answer in answers), [answer.error for answer in answers]
    times = [answer.arrivals_s for answer in answers]
    return [later - earlier for each in times for earlier, later in itertools.pairwise(each)]


@contextlib.asynccontextmanager
async def others(node: RunningNode, *, read: bool) -> AsyncIterator[None]:
    """As many further streams with small buffers, whose clients read what comes, or nothing at all."""
    address = urlparse(node.url)
    body = json.dumps(OTHERS_BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    loop = asyncio.get_running_loop()
    sockets = []
    for _ in range(NUM_OTHERS):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        connection.setblocking(False)
        await loop.sock_connect(connection, (address.hostname, address.port))
        await loop.sock_sendall(connection, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        sockets.append(connection)
    reading = [asyncio.create_task(drain(connection)) for connection in sockets if read]
    try:
        await until(lambda: running(node) == NUM_OTHERS * NUM_CHOICES, "all of the others running")
        await until(lambda: num_readers(node) == (NUM_OTHERS if read else 0), "readers")
        yield
        assert running(node) == NUM_OTHERS * NUM_CHOICES, "their requests were to outlast the measurement"
        assert num_readers(node) == (NUM_OTHERS if read else 0)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for connection in sockets:
            connection.close()
        await until(lambda: running(node) == 0, "their end")


async def drain(connection: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(connection, 65536):
        pass


def running(node: RunningNode) -> int:
    """Sequences at the scheduler."""
    return int(metric(node, "scheduler-0", "vllm:num_requests_running"))


def num_readers(node: RunningNode) -> int:
    """Attachments at the detokenizer: a client that reads too slowly has none."""
    return int(json.loads(probe(node, "detokenizer-0", "/health"))["readers"])


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_readers_that_do_not_read_leave_their_neighbours_p99_within_a_fifth(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", "--engine", "fake", "--fake-step-ms", "20") as node:
        control_s, burden_s, shown = await p99_in_turns(
            lambda: gaps_s(node.url),
            functools.partial(others, node, read=True),
            functools.partial(others, node, read=False),
            NUM_ROUNDS,
        )
    assert burden_s <= MAX_RATIO * control_s, shown
