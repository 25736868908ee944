"""Clients that stop reading, and sockets that close under a write (rule 15)."""

import asyncio
import contextlib
import socket
import struct
from typing import Any

from services.detokenizer.batches import MAX_BATCH_BYTES
from tests.gateway.conftest import Running
from tests.gateway.raw_stream import Streaming, head_of
from tests.gateway.stand_in import Script
from tests.gateway.test_reading_again import Reader
from tests.waiting import LIMIT_S, until

HIGH_WATER_BYTES = 64 * 1024
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
LARGE = 20_000
BODY = head_of(b'{"model":"tiny","prompt":"hello","stream":true}')


def open_socket(port: int) -> socket.socket:
    """A client with a small window that reads only when told to."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(BODY)
    return client


def large_text(start: int, stop: int) -> str:
    return "".join("x" * LARGE + f" w{index};" for index in range(start, stop))


def connections(running: Running) -> Any:
    return list(running.gateway.server._state.connections)


async def test_a_client_that_does_not_read_costs_its_neighbours_nothing(running: Running) -> None:
    """3 MB for it are not held here: its text stays where it is, until it reads."""
    num_tokens = 150
    running.stand_in.script = Script(num_tokens=num_tokens, text=large_text)
    client = await asyncio.to_thread(open_socket, running.port)
    try:
        await until(lambda: running.stand_in.detaches, "it is detached")
        held_bytes = max(connection.transport.get_write_buffer_size() for connection in connections(running))
        assert held_bytes <= HIGH_WATER_BYTES + MAX_BATCH_BYTES
        running.stand_in.script = Script(num_tokens=50)
        for _ in range(40):
            assert (await running.complete(stream=True)).status_code == 200
        assert len(running.stand_in.detaches) == 1, "it is not attached again before it reads"
        seen = await asyncio.to_thread(read_to_end, client)
        assert [seen.count(b" w%d;" % index) for index in range(num_tokens)] == [1] * num_tokens
    finally:
        client.close()


def read_to_end(client: socket.socket) -> bytes:
    client.settimeout(LIMIT_S)
    seen = bytearray()
    while b"[DONE]" not in seen:
        part = client.recv(2**16)
        assert part, seen[-300:]
        seen += part
    return bytes(seen)


async def test_many_clients_that_do_not_read(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=150, text=large_text)
    clients = [await asyncio.to_thread(open_socket, running.port) for _ in range(20)]
    try:
        await until(lambda: len({detach.request_id for detach in running.stand_in.detaches}) == 20)
        held = sum(connection.transport.get_write_buffer_size() for connection in connections(running))
        assert held <= 20 * (HIGH_WATER_BYTES + MAX_BATCH_BYTES)
        running.stand_in.script = Script()
        assert (await running.complete()).status_code == 200
    finally:
        for client in clients:
            client.close()
    await until(lambda: not running.gateway.endpoints.generations, "all of them gone")
    await until(lambda: len(set(running.stand_in.ends)) == 20)


async def test_resuming_at_a_slow_client_pauses_with_its_first_text(running: Running) -> None:
    """What is written before the pause can be noticed must not go on without limit."""
    running.stand_in.script = Script(num_tokens=150, text=large_text)
    whole = Reader.asking(running, {"Idempotency-Key": "k"})
    await whole.task
    running.stand_in.detaches.clear()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.to_thread(client.connect, ("127.0.0.1", running.port))
    try:
        client.sendall(f"GET /v1/requests/{whole.request_id}/stream HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await until(lambda: running.stand_in.detaches, "it is detached")
        seen = await asyncio.to_thread(read_to_end, client)
        assert [seen.count(b" w%d;" % index) for index in range(150)] == [1] * 150
    finally:
        client.close()


async def test_a_socket_that_is_reset_under_its_writes_harms_nobody(running: Running) -> None:
    """Again and again, while text flows: each ends its own request, and the gateway serves on."""
    running.stand_in.script = Script(num_tokens=400, tokens_per_delta=1)
    for round_ in range(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        streaming = Streaming(reader, writer)
        writer.write(BODY)
        if round_ % 3:
            await streaming.read_until(b" w%d" % round_)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    await until(lambda: not running.gateway.endpoints.generations, "all of them gone")
    assert running.gateway.pipeline.hub.attachments.num_streams == 0
    assert (await running.complete()).status_code == 200
