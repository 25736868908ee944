"""The bus on a real server."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.bus.client import Bus
from shared.bus.errors import NoResponders, NotConnected, PayloadTooLarge
from shared.bus.nats_client import DirectClient
from shared.subjects import is_inbox
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until


async def pair(server: NatsServer) -> tuple[Bus, Bus]:
    return await Bus.connect(server.url, "left-1"), await Bus.connect(server.url, "right-1")


async def test_messages_arrive_in_order_with_reply_and_headers(nats_server: NatsServer) -> None:
    left, right = await pair(nats_server)
    heard: list[tuple[str, str, bytes, bytes]] = []
    await right.subscribe("a.*", lambda *message: heard.append(message))
    await right.flush()
    for number in range(100):
        assert left.publish("a.b", b"%d" % number, reply="_INBOX.left.1")
    left.publish("a.c", b"with headers", headers=b"NATS/1.0\r\nKey: value\r\n\r\n")
    await until(lambda: len(heard) == 101)
    assert [data for _, _, data, _ in heard[:100]] == [b"%d" % number for number in range(100)]
    assert heard[0][:2] == ("a.b", "_INBOX.left.1") and heard[0][3] == b""
    assert b"Key: value" in heard[100][3]
    await left.close()
    await right.close()


async def test_a_request_gets_its_reply_and_says_when_nobody_listens(nats_server: NatsServer) -> None:
    left, right = await pair(nats_server)
    await right.subscribe("echo", lambda subject, reply, data, headers: right.publish(reply, data))
    await right.flush()
    assert await left.request("echo", b"hello", LIMIT_S) == b"hello"
    with pytest.raises(NoResponders):
        await left.request("nobody", b"", LIMIT_S)
    await right.subscribe("silent", lambda *message: None)
    await right.flush()
    with pytest.raises(TimeoutError):
        await left.request("silent", b"", 0.05)
    await left.close()
    await right.close()


async def test_n7_a_message_over_max_payload_is_refused_before_it_is_sent(nats_server: NatsServer) -> None:
    left, right = await pair(nats_server)
    heard: list[bytes] = []
    await right.subscribe("a", lambda subject, reply, data, headers: heard.append(data))
    await right.flush()
    fits = b"x" * left.max_payload
    with pytest.raises(PayloadTooLarge) as refused:
        left.publish("a", fits + b"x")
    assert str(left.max_payload) in str(refused.value)
    with pytest.raises(PayloadTooLarge):
        await left.request("a", fits + b"x", LIMIT_S)
    assert left.publish("a", fits)
    await until(lambda: heard)
    assert heard == [fits] and left.is_connected, "the connection and its streams live on"
    await left.close()
    await right.close()


@pytest.mark.parametrize("bad", ["a b", "a\r\nPUB stolen 2\r\nhi", "a\nb", "a\x00b", "a\u00e9", "a..b", "", "a\tb"])
async def test_n6_a_subject_that_is_a_command_is_never_sent(nats_server: NatsServer, bad: str) -> None:
    """Inboxes and names come from others: as a subject or a reply they must not speak to the server."""
    left, right = await pair(nats_server)
    heard: list[str] = []
    await right.subscribe(">", lambda subject, reply, data, headers: heard.append(subject))
    await right.flush()
    assert not left.publish(bad, b"data")
    assert not left.publish("fine", b"data", reply=bad) or not bad
    assert left.publish("last", b"")
    await until(lambda: "last" in heard)
    assert set(heard) <= {"last", "fine"} and ("fine" in heard) == (bad == "") and left.num_refused == 1 + (bad != "")
    await left.close()
    await right.close()


@pytest.mark.parametrize(
    "frame", [b"PUB a %d\r\n%b\r\n" % (5 << 20, bytes(5 << 20)), b"SUB a.. 77\r\n", b"NONSENSE\r\n"]
)
async def test_an_error_of_the_server_leads_to_a_new_connection(nats_server: NatsServer, frame: bytes) -> None:
    """nats-py takes these for the end of everything."""
    left, right = await pair(nats_server)
    heard: list[bytes] = []
    await left.subscribe("a", lambda subject, reply, data, headers: heard.append(data))
    left._client.write_now(frame)
    await until(lambda: left._client.stats["reconnects"] == 1 and left.is_connected, "a new connection")
    await until(lambda: right.publish("a", b"") and heard, "its subscriptions")
    await left.close()
    await right.close()


async def test_it_reconnects_and_tells(nats_server: NatsServer) -> None:
    left, right = await pair(nats_server)
    heard: list[bytes] = []
    hooks: list[str] = []
    await right.subscribe("a", lambda subject, reply, data, headers: heard.append(data))
    right.reconnect_hooks.append(lambda: hooks.append("right"))
    await asyncio.to_thread(nats_server.kill)
    await until(lambda: not left.is_connected and not right.is_connected)
    assert not left.publish("a", b"lost")
    with pytest.raises(NotConnected):
        await left.request("a", b"", LIMIT_S)
    await asyncio.to_thread(nats_server.restart)
    await until(lambda: left.is_connected and right.is_connected and hooks)
    await until(lambda: left.publish("a", b"found") and heard)
    assert b"lost" not in heard
    await left.close()
    await right.close()


@pytest.fixture
def second_server(tmp_path: Path) -> Iterator[NatsServer]:
    folder = tmp_path / "second"
    folder.mkdir()
    with NatsServer(folder) as server:
        yield server


async def test_of_several_servers_a_dead_and_a_silent_one_are_left(
    nats_server: NatsServer, second_server: NatsServer
) -> None:
    """A stopped server keeps its sockets open: only the pings that it does not answer tell."""
    by_url = {server.url: server for server in (nats_server, second_server)}
    bus = await Bus.connect(",".join(by_url), "left-1")
    hooks: list[str] = []
    bus.reconnect_hooks.append(lambda: hooks.append("again"))
    first = by_url[connected_to(bus)]
    await asyncio.to_thread(first.kill)
    await until(lambda: hooks, "the other server")
    other = by_url[connected_to(bus)]
    assert other is not first
    await asyncio.to_thread(first.restart)
    hooks.clear()
    await asyncio.to_thread(other.pause)
    try:
        await until(lambda: hooks, "the first one again")
        assert connected_to(bus) == first.url
    finally:
        other.resume()
    await bus.close()


def connected_to(bus: Bus) -> str:
    return str(bus._client.connected_url.geturl())


async def test_a_probe_leaves_a_silent_server_and_no_other(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url, "left-1")
    await bus.probe(LIMIT_S)
    assert bus.is_connected
    await asyncio.to_thread(nats_server.pause)
    try:
        await bus.probe(0.1)
        assert not bus.is_connected
        await bus.probe(0.1)
    finally:
        nats_server.resume()
    await until(lambda: bus.is_connected)
    await bus.close()


async def test_what_waits_for_a_silent_server_is_bounded_and_the_rest_is_told(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 4 * 1024 * 1024
    monkeypatch.setattr("shared.bus.nats_client.MAX_WRITE_BUFFER_BYTES", limit)
    left, right = await pair(nats_server)
    heard: list[int] = []
    await right.subscribe("a", lambda subject, reply, data, headers: heard.append(len(data)))
    await right.flush()
    large = bytes(512 * 1024)
    await asyncio.to_thread(nats_server.pause)
    try:
        taken = [left.publish("a", large) for _ in range(64)]
        transport = left._client._socket()
        assert transport is not None and transport.get_write_buffer_size() <= limit + 2 * len(large)
    finally:
        nats_server.resume()
    assert taken[0] and not taken[-1], "False says that it was not sent"
    await until(lambda: len(heard) == sum(taken), "all that was taken")
    assert left.publish("a", b"x"), "there is room again"
    await left.close()
    await right.close()


async def test_a_subscriber_that_does_not_read_costs_its_neighbours_nothing(nats_server: NatsServer) -> None:
    """The server keeps what it does not take, up to a limit, then ends its connection."""
    left, right = await pair(nats_server)
    heard: list[int] = []
    await right.subscribe("a", lambda subject, reply, data, headers: heard.append(len(data)))
    await right.flush()
    host, _, port = nats_server.url.removeprefix("nats://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
    assert (await reader.readline()).startswith(b"INFO ")
    assert await reader.readline() == b"PONG\r\n"
    num_sent = 256  # 128 MB: twice what the server keeps for one connection
    for _ in range(num_sent):
        assert left.publish("a", bytes(512 * 1024))
        await left.flush()
    await until(lambda: len(heard) == num_sent, "everything")
    assert left.is_connected and right.is_connected
    num_bytes = 0
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                num_bytes += len(data)
    assert num_bytes < sum(heard), "it was let go of"
    writer.close()
    await left.close()
    await right.close()


async def test_a_handler_that_fails_ends_the_process(nats_server: NatsServer) -> None:
    left, right = await pair(nats_server)
    failures: list[BaseException] = []
    right.fatal = failures.append

    def broken(subject: str, reply: str, data: bytes, headers: bytes) -> None:
        raise ValueError("a bug")

    subscription = await right.subscribe("a", broken)
    await right.flush()
    left.publish("a", b"")
    await until(lambda: failures)
    assert isinstance(failures[0], ValueError)
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    await left.close()
    await right.close()


async def test_rule_19_replies_go_to_inboxes_of_the_role(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url, "gateway-12-abcd")
    inbox = bus.new_inbox()
    assert inbox.startswith("_INBOX.gateway.") and is_inbox(inbox) and inbox != bus.new_inbox()
    await bus.close()


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "tb.v1.infer",
        "$JS.API.STREAM.DELETE.LOG_s0",
        "_INBOX.*",
        "_INBOX.a.>",
        "_INBOX..a",
        "_INBOX.a.",
        "_INBOXa",
        "_INBOX.a b",
        "_INBOX.a\tb",
        "_INBOX.a\r\nPUB tb.v1.infer 0\r\n",
        "_INBOX.\u2028",
    ],
)
def test_rule_19_anything_else_is_no_reply_subject(subject: str) -> None:
    assert not is_inbox(subject)


async def test_a_cancellation_that_comes_with_an_error_ends_the_wait_for_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(client: DirectClient, server: object) -> None:
        """What asyncio.wait_for does before Python 3.12 with a refusal and a cancellation in the same turn."""
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        raise ConnectionRefusedError

    monkeypatch.setattr(DirectClient, "_connect_to_server", refuse)
    waiting = asyncio.ensure_future(Bus.connect("nats://127.0.0.1:1", "test"))
    done, _ = await asyncio.wait({waiting}, timeout=LIMIT_S)
    monkeypatch.undo()
    if not done:
        waiting.cancel()
    assert done and waiting.cancelled()
