"""The health listener answers what it knows, and nothing that it is sent harms it."""

import asyncio
import json

import pytest

from shared.health import Health, HealthServer, health_page


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
