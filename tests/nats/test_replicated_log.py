"""The log with three replicas on a real cluster: appends, fences and tails over a change of leader."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from shared.bus import log_tail
from shared.bus.client import Bus
from shared.bus.credentials import Credentials
from shared.bus.log_tail import LogLost
from shared.bus.nats_log import NatsLog
from shared.log.fold import Fold
from shared.messages.codec import encode
from shared.messages.pipeline import End, Fence
from shared.subjects import log_stream, object_stream, snapshot_bucket
from tests.nats.local_cluster import LocalCluster
from tests.nats.secured import credentials_of
from tests.waiting import LIMIT_S, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def scheduler(cluster: LocalCluster) -> Credentials:
    return credentials_of(cluster.identities, "scheduler")


@pytest_asyncio.fixture
async def bus(cluster: LocalCluster, scheduler: Credentials) -> AsyncIterator[Bus]:
    connected = await Bus.connect(cluster.url, "scheduler-1", scheduler)
    yield connected
    await connected.close()


async def opened(bus: Bus) -> NatsLog:
    """The log, created with three replicas at the first call; the cluster may still be electing its first leader."""
    return await asyncio.wait_for(NatsLog.open(bus, "s0", replicas=3), LIMIT_S)


def end(number: int) -> bytes:
    return encode(End(request_id=f"{number:032x}", reason="cancel"))


async def test_log_and_snapshots_have_three_replicas(bus: Bus) -> None:
    log = await opened(bus)
    js = bus.jetstream(LIMIT_S)
    for stream in (log_stream("s0"), object_stream(snapshot_bucket("s0"))):
        assert (await js.stream_info(stream)).config.num_replicas == 3
    await log.save_snapshot(b"state" * 1000, 7)
    assert await log.load_snapshot() == b"state" * 1000


async def test_a_log_that_is_there_keeps_its_replicas_and_says_so(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    await opened(bus)
    await asyncio.wait_for(NatsLog.open(bus, "s0", replicas=1), LIMIT_S)
    assert (await bus.jetstream(LIMIT_S).stream_info(log_stream("s0"))).config.num_replicas == 3
    assert "keeps its 3 replicas, not 1" in caplog.text


async def test_appends_and_fences_over_a_change_of_leader(bus: Bus, cluster: LocalCluster) -> None:
    """Each record once, in one order, and one winner of two fences, whoever leads and dies meanwhile."""
    log = await opened(bus)
    fold = Fold()
    folded: list[object] = []
    tail = log.tail(fold, lambda change: folded.append(change.record), lambda: None)
    await tail.start()
    info = await bus.jetstream(LIMIT_S).stream_info(log_stream("s0"))
    assert info.cluster is not None
    leader = info.cluster.leader
    assert leader is not None
    num_before = len(folded)
    appending = asyncio.create_task(append_many(log, 60))
    await until(lambda: len(folded) >= num_before + 20, "appends under way")
    await asyncio.to_thread(cluster.kill, leader)
    stored = await asyncio.wait_for(appending, LIMIT_S)
    fences = [encode(Fence(kind="takeover", leader=f"scheduler-{number}")) for number in range(2)]
    expected = fold.newest_fence
    won = await asyncio.gather(*(log.append_fence(fence, expected) for fence in fences))
    await until(lambda: fold.newest_fence > expected, "the fence")
    assert sum(seq is not None for seq in won) == 1 and fold.newest_fence in won
    records = [record for record in folded[num_before:] if isinstance(record, End)]
    assert [record.request_id for record in records] == [f"{number:032x}" for number in range(60)]
    assert stored == sorted(set(stored)), "an acknowledgement names the one place of its record"
    await tail.stop()
    await asyncio.to_thread(cluster.restart, leader)


async def append_many(log: NatsLog, count: int) -> list[int]:
    return [await log.append("end", end(number), f"message-{number}") for number in range(count)]


async def test_a_log_that_is_short_for_a_while_is_not_lost(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader may not have applied all that it has stored; only a log that stays short is another one."""
    log = await opened(bus)
    await log.append("end", end(1000), "message-1000")
    ahead = Fold()
    ahead.seq = (await log.bounds())[1] + 2
    tail = log.tail(ahead, lambda change: None, lambda: None)
    starting = asyncio.create_task(tail.start())
    await until(lambda: tail.resets >= 3, "it tries again")
    for number in range(2):
        await log.append("end", end(2000 + number), f"message-{2000 + number}")
    await asyncio.wait_for(starting, LIMIT_S)
    await tail.stop()
    monkeypatch.setattr(log_tail, "ELECTION_S", 0.3)
    ahead.seq += 100
    with pytest.raises(LogLost):
        await asyncio.wait_for(log.tail(ahead, lambda change: None, lambda: None).start(), LIMIT_S)


def test_a_clients_certificate_opens_no_route_between_servers(cluster: LocalCluster) -> None:
    """Whoever speaks as a server is believed everything; so routes trust another authority than clients have."""
    node = next(iter(cluster.nodes.values()))
    files = cluster.identities
    good = ssl.create_default_context(cafile=str(files.route_files(node.name).ca_file))
    good.load_cert_chain(files.route_files(node.name).cert_file, files.route_files(node.name).key_file)
    bad = ssl.create_default_context(cafile=str(files.route_files(node.name).ca_file))
    bad.load_cert_chain(files.certificate("admin"), files.key("admin"))
    assert route_speaks(node.host, node.route_port, good)
    assert not route_speaks(node.host, node.route_port, bad)


def route_speaks(host: str, port: int, context: ssl.SSLContext) -> bool:
    """Whether the listener for other servers introduces itself after the handshake."""
    with socket.create_connection((host, port), timeout=LIMIT_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as secured:
                return secured.recv(4096).startswith(b"INFO ")
        except ssl.SSLError:
            return False
