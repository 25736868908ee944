"""The health listener answers what it knows, and nothing that it is sent harms it."""

import asyncio
import json
import socket
from typing import Any

import pytest

from shared.health import Health, HealthServer, health_page
from tests.waiting import until


async def ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n", b"200"),
        (b"GET /ready?x=1 HTTP/1.1\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /live HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01 what\r\n\r\n", b"400"),
    ],
)
async def test_status_of_requests(data: bytes, status: bytes) -> None:
    server = HealthServer("127.0.0.1", 0, lambda: Health(True, {}))
    await server.start()
    assert (await ask(server.port, data)).startswith(b"HTTP/1.1 " + status)
    await server.close()


async def test_endless_and_torn_heads_get_no_answer_and_harm_nobody() -> None:
    server = HealthServer("127.0.0.1", 0, lambda: Health(True, {}))
    await server.start()
    assert await ask(server.port, b"GET /live HTTP/1.1\r\nX: " + b"x" * 100_000) == b""
    assert await ask(server.port, b"GET /li") == b""
    assert b"200 OK" in await ask(server.port, b"GET /live HTTP/1.1\r\n\r\n")
    await server.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_probe_in_mid_question_as_the_service_ends_is_no_error(is_closed: bool) -> None:
    """Whether its connection is ended first or the loop just ends."""
    errors: list[dict[str, Any]] = []
    clients: list[socket.socket] = []

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        server = HealthServer("127.0.0.1", 0, lambda: Health(True, {}))
        await server.start()
        clients.append(socket.create_connection(("127.0.0.1", server.port)))
        clients[0].sendall(b"GET /li")
        await until(lambda: server._connections, "the connection")
        if is_closed:
            await server.close()
            assert not server._connections
        elif server._server is not None:
            server._server.close()  # connections stay

    with asyncio.Runner() as runner:
        runner.run(serve())
    assert clients[0].recv(100) == b""
    clients[0].close()
    assert errors == []


def test_ready_and_health_tell_the_same_truth() -> None:
    for missing, status in (([], 200), (["worker", "progress"], 503)):
        health = Health(not missing, {"model": "m", "device": "cpu"}, missing)
        page = health_page("/ready", lambda health=health: health)  # type: ignore[misc]
        assert page.status == status
        assert json.loads(page.body) == {"ready": not missing, "missing": missing}
        page = health_page("/health", lambda health=health: health)  # type: ignore[misc]
        assert page.status == status
        assert json.loads(page.body) == {"ready": not missing, "missing": missing, "model": "m", "device": "cpu"}
    assert health_page("/live", lambda: Health(False, {})).status == 200
