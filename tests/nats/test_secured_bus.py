"""The bus with TLS and sign-in: the same behaviour as in the clear, nothing without credentials, never a dead end."""

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from deploy.nats.identities import Identities, make_seed
from shared.bus.client import Bus
from shared.bus.credentials import Credentials
from shared.subjects import plan
from tests.nats.secured import SecuredServer, credentials_of
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until

BUSY_FRAMES = 4000
FRAME_BYTES = 20_000
SUBJECT = plan("worker-1-00000000")
AT_ONCE_S = 25.0  # event loops wait 30 s for the end of a TLS session that a peer does not answer


async def pair(server: SecuredServer) -> tuple[Bus, Bus]:
    sender = await Bus.connect(server.url, "scheduler-1", server.credentials("scheduler"))
    receiver = await Bus.connect(server.url, "worker-1", server.credentials("worker"))
    return sender, receiver


async def check_load(secured: SecuredServer) -> None:
    sender, receiver = await pair(secured)
    numbers: list[int] = []

    def on_frame(subject: str, reply: str, data: bytes, headers: bytes) -> None:
        (number,) = struct.unpack_from("<I", data)
        assert len(data) == FRAME_BYTES and data[4:] == bytes([number % 251]) * (FRAME_BYTES - 4)
        numbers.append(number)

    await receiver.subscribe(SUBJECT, on_frame)
    await receiver.flush()
    for number in range(BUSY_FRAMES):
        data = struct.pack("<I", number) + bytes([number % 251]) * (FRAME_BYTES - 4)
        while not sender.publish(SUBJECT, data):  # noqa: ASYNC110  the transport has no event
            await asyncio.sleep(0)
        if number % 64 == 0:  # at 64 frames of 20 kB in one turn of the loop the transport has to queue
            await asyncio.sleep(0)
    await until(lambda: len(numbers) == BUSY_FRAMES, "all frames")
    assert numbers == list(range(BUSY_FRAMES))
    await sender.close()
    await receiver.close()


async def test_frames_arrive_whole_and_in_order_through_tls(secured: SecuredServer) -> None:
    """Publishing writes to the encrypting transport, not past it, also when it is congested."""
    await check_load(secured)


def test_frames_arrive_whole_through_tls_on_the_loop_of_the_services(secured: SecuredServer) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_load(secured))


async def test_a_reply_comes_to_the_inbox_of_the_role(secured: SecuredServer) -> None:
    gateway = await Bus.connect(secured.url, "gateway-1", secured.credentials("gateway"))
    tokenizer = await Bus.connect(secured.url, "tokenizer-1", secured.credentials("tokenizer"))
    await tokenizer.subscribe("tb.v1.infer", lambda _, reply, data, __: tokenizer.publish(reply, data), "tokenizer")
    await tokenizer.flush()
    assert await gateway.request("tb.v1.infer", b"hello", LIMIT_S) == b"hello"
    await gateway.close()
    await tokenizer.close()


async def test_what_is_not_allowed_is_told_and_the_connection_lives(
    secured: SecuredServer, caplog: pytest.LogCaptureFixture
) -> None:
    bus = await Bus.connect(secured.url, "worker-1", secured.credentials("worker"))
    bus.publish("tb.v1.log.s0.fence", b"mine")
    await until(lambda: bus.num_refused == 1, "the refusal")
    assert 'permissions violation for publish to "tb.v1.log.s0.fence"' in caplog.text
    assert bus.is_connected
    await bus.close()


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    """Identities of another authority."""
    made = Identities(tmp_path_factory.mktemp("strangers"))
    made.make(["worker"])
    return made


async def test_nobody_comes_in_without_all_of_seed_certificate_and_trust(
    secured: SecuredServer, strangers: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    good = secured.credentials("worker")
    await (await Bus.connect(secured.url, "worker-1", good)).close()
    stranger = await asyncio.to_thread(credentials_of, strangers, "worker")
    uncertified = ssl.create_default_context(cafile=str(secured.identities.authority))
    bad = (
        Credentials(),
        Credentials(seed=good.seed),
        Credentials(seed=make_seed().decode(), tls=good.tls),
        Credentials(tls=good.tls),
        Credentials(seed=good.seed, tls=uncertified),
        stranger,
    )
    connecting = [asyncio.ensure_future(Bus.connect(secured.url, "worker-1", each)) for each in bad]
    await until(lambda: "the NATS server refuses" in caplog.text, "a refusal")
    let_in, _ = await asyncio.wait(connecting, timeout=1.5)
    for each in connecting:
        each.cancel()
    await asyncio.gather(*connecting, return_exceptions=True)
    assert not let_in
    assert good.seed not in caplog.text and good.seed not in secured.log()


async def test_nothing_is_sent_to_a_server_without_tls_if_tls_was_asked_for(
    secured: SecuredServer, nats_server: NatsServer
) -> None:
    url = nats_server.url.replace("nats://", "tls://")
    for target, credentials in ((url, Credentials()), (nats_server.url, secured.credentials("worker"))):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Bus.connect(target, "worker-1", credentials), 0.5)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[SecuredServer]:
    """A secured server of this test alone."""
    with SecuredServer(tmp_path) as server:
        yield server


def forget(server: SecuredServer, role: str) -> Callable[[], None]:
    """Take a role from the users of the server's next start or reload; call the result to undo it."""
    known, security = server.options, server.options.security
    assert security is not None
    nkeys = {each: key for each, key in security.nkeys.items() if each != role}
    server.options = msgspec.structs.replace(known, security=msgspec.structs.replace(security, nkeys=nkeys))

    def undo() -> None:
        server.options = known

    return undo


async def test_a_server_that_comes_back_and_refuses_is_asked_until_it_agrees(own_server: SecuredServer) -> None:
    bus = await Bus.connect(own_server.url, "worker-1", own_server.credentials("worker"))
    await asyncio.to_thread(own_server.kill)
    await until(lambda: not bus.is_connected)
    remember = forget(own_server, "worker")
    await asyncio.to_thread(own_server.restart)
    await until(lambda: bus.num_refused >= 1, "a refusal")
    remember()
    await asyncio.to_thread(own_server.restart)
    await until(lambda: bus.is_connected, "sign-in")
    await bus.close()


async def test_a_user_that_is_taken_away_and_given_back_while_connected(own_server: SecuredServer) -> None:
    """A reload ends its connection with an error that nats-py takes for the end of everything."""
    bus = await Bus.connect(own_server.url, "worker-1", own_server.credentials("worker"))
    sender = await Bus.connect(own_server.url, "scheduler-1", own_server.credentials("scheduler"))
    heard: list[bytes] = []
    await bus.subscribe(SUBJECT, lambda subject, reply, data, headers: heard.append(data))
    remember = forget(own_server, "worker")
    await asyncio.to_thread(own_server.reload)
    await until(lambda: bus.num_refused >= 1, "a refusal")
    remember()
    await asyncio.to_thread(own_server.reload)
    await until(lambda: sender.publish(SUBJECT, b"") and heard, "the bus back")
    await bus.close()
    await sender.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_stopped_server_is_left_at_once_however_much_is_on_its_way(
    own_server: SecuredServer, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps its sockets open and never reads what was sent, nor the end of the TLS session."""
    caplog.set_level(logging.INFO, "shared.bus.client")
    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(leave_stopped(own_server, caplog))


async def leave_stopped(server: SecuredServer, caplog: pytest.LogCaptureFixture) -> None:
    bus = await Bus.connect(server.url, "scheduler-1", server.credentials("scheduler"))
    await asyncio.to_thread(server.pause)
    try:
        for _ in range(20):
            bus.publish(SUBJECT, b"x" * 1_000_000)
        await bus.probe(0.2)
        async with asyncio.timeout(AT_ONCE_S):
            await until(lambda: "bus disconnected" in caplog.text, "the end of the old connection")
    finally:
        server.resume()
    await until(lambda: bus.is_connected, "the server back")
    await asyncio.to_thread(server.pause)
    try:
        await asyncio.wait_for(bus.close(), AT_ONCE_S)
    finally:
        server.resume()


async def test_a_connection_that_is_closed_already_can_be_cut_and_comes_back(secured: SecuredServer) -> None:
    """Early Pythons 3.11 forget the protocol of a closed TLS transport, and cannot abort it any more."""
    bus = await Bus.connect(secured.url, "worker-1", secured.credentials("worker"))
    hooks: list[str] = []
    bus.reconnect_hooks.append(lambda: hooks.append("again"))
    socket = bus._client._socket()
    assert socket is not None
    socket.close()
    await until(lambda: socket.is_closing() and bool(hooks), "a new connection")
    bus._client.cut()
    await until(lambda: len(hooks) == 2 and bus.is_connected, "another one")
    await bus.close()
