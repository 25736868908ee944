"""Several gateways accept from one listening socket that was handed to them; each leaves without harm to the others."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from deploy.node.nats_server import free_port
from deploy.node.processes import HealthProbe
from shared import subjects
from tests.gateway.conftest import Running, start_gateway, stop_gateway
from tests.gateway.stand_in import StandIn
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until

NUM_CONNECTIONS = 64


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Held by the test as a node holds it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
async def pair(nats_server: NatsServer, stand_in: StandIn, listener: socket.socket) -> AsyncIterator[list[Running]]:
    """Two gateways on the socket. One that a test has stopped must be taken off the list."""
    running = [await join(nats_server, stand_in, listener) for _ in range(2)]
    yield running
    for each in running:
        await stop_gateway(each)


async def join(nats_server: NatsServer, stand_in: StandIn, listener: socket.socket) -> Running:
    return await start_gateway(nats_server.url, stand_in, listen_fd=(os.dup(listener.fileno()),))


async def connect_at_once(port: int) -> list[int]:
    """The statuses of many requests, each on a connection of its own."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S, trust_env=False) as client:
        body = {"model": "tiny", "prompt": "hello"}
        answers = await asyncio.gather(
            *(
                client.post("/v1/completions", json=body, headers={"Connection": "close"})
                for _ in range(NUM_CONNECTIONS)
            )
        )
    return [answer.status_code for answer in answers]


async def test_all_are_served_while_gateways_come_and_go(
    pair: list[Running], nats_server: NatsServer, stand_in: StandIn, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    assert {gateway.port for gateway in pair} == {port}
    clients = asyncio.create_task(connect_at_once(port))
    await stop_gateway(pair.pop())
    assert await clients == [200] * NUM_CONNECTIONS
    assert await connect_at_once(port) == [200] * NUM_CONNECTIONS
    pair.append(await join(nats_server, stand_in, listener))
    await stop_gateway(pair.pop(0))
    assert await connect_at_once(port) == [200] * NUM_CONNECTIONS


async def test_clients_wait_while_no_gateway_is_there(
    pair: list[Running], nats_server: NatsServer, stand_in: StandIn, listener: socket.socket
) -> None:
    while pair:
        await stop_gateway(pair.pop())
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    writer.write(b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n")
    pair.append(await join(nats_server, stand_in, listener))
    assert b"200 OK" in await asyncio.wait_for(reader.readline(), LIMIT_S)
    writer.close()
    await writer.wait_closed()


async def test_a_gateway_that_has_heard_nothing_yet_takes_no_connection(
    nats_server: NatsServer, stand_in: StandIn, listener: socket.socket
) -> None:
    """Its refusal would be a failure that another gateway on the socket would not have caused."""
    stand_in.beats.discard("leader")
    beats: list[bytes] = []
    await stand_in.bus.subscribe(subjects.TOKENIZER_HEARTBEAT, lambda subject, reply, data, headers: beats.append(data))
    joining = asyncio.create_task(join(nats_server, stand_in, listener))
    clients = asyncio.create_task(connect_at_once(listener.getsockname()[1]))
    await until(lambda: len(beats) > 8, "heartbeats of all but the leader")
    assert not clients.done()
    stand_in.beats.add("leader")
    assert await clients == [200] * NUM_CONNECTIONS
    await stop_gateway(await joining)


async def test_stopped_and_killed_processes_attract_no_connections(
    nats_server: NatsServer, stand_in: StandIn, listener: socket.socket
) -> None:
    """Real processes, on uvloop. A stopped one has the socket open and accepts nothing: the other one takes all."""
    port = listener.getsockname()[1]
    with Process(nats_server, listener) as first, Process(nats_server, listener) as second:
        await first.ready()
        await second.ready()
        first.send(signal.SIGSTOP)
        await until(lambda: first.state() == "T", "a stopped process")
        assert await connect_at_once(port) == [200] * NUM_CONNECTIONS
        first.send(signal.SIGCONT)
        second.send(signal.SIGKILL)
        await until(lambda: second.process.poll() is not None, "a killed process")
        assert await connect_at_once(port) == [200] * NUM_CONNECTIONS
        first.send(signal.SIGTERM)
        await until(lambda: first.process.poll() is not None, "a process that drained")
        assert first.process.returncode == 0
        clients = asyncio.create_task(connect_at_once(port))
        with Process(nats_server, listener):
            assert await clients == [200] * NUM_CONNECTIONS


class Process:
    """A gateway as a process on the socket, killed at the end."""

    def __init__(self, nats_server: NatsServer, listener: socket.socket) -> None:
        fd = listener.fileno()
        command = [sys.executable, "-m", "services.gateway", "--nats", nats_server.url, "--listen-fd", str(fd)]
        self._health_port = free_port()
        command += ["--health-port", str(self._health_port)]
        self.process = subprocess.Popen(command, pass_fds=[fd], stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    async def ready(self) -> None:
        """Return once it can serve."""
        probe = HealthProbe(self._health_port)
        async with asyncio.timeout(30):
            while not await probe.is_ready():  # noqa: ASYNC110  another process has no event
                await asyncio.sleep(0.02)

    def send(self, number: int) -> None:
        """A signal."""
        self.process.send_signal(number)

    def state(self) -> str:
        """Its state in /proc."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_descriptor_that_is_no_socket_is_one_clear_line(nats_server: NatsServer) -> None:
    command = [sys.executable, "-m", "services.gateway", "--nats", nats_server.url, "--listen-fd", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "--listen-fd 1: cannot listen there" in done.stderr
    assert "Traceback" not in done.stderr
