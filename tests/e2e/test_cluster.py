"""Three nats-servers with three replicas of the log: any one of them may be killed or stopped in mid-stream.

The chained fake engine draws tokens from the worker's own entropy: a stream is whole and equal to the log only if no
record was lost, doubled or reordered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import nats.errors
import pytest
import pytest_asyncio
from nats.js.api import StreamInfo

from shared.bus.client import Bus
from shared.bus.credentials import Credentials
from shared.subjects import log_stream
from tests.e2e.streams import all_running, connect
from tests.nats.local_cluster import NAMES, LocalCluster
from tests.nats.secured import credentials_of
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S

MODEL = "smollm2-135m"
NUM_STREAMS = 8
NUM_TOKENS = 150
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "20", "--nats-replicas", "3")
STALL_S = 12.0


class Fixture:
    """Cluster, node and a connection that sees who leads the log."""

    def __init__(self, cluster: LocalCluster, node: RunningNode, bus: Bus) -> None:
        self.cluster = cluster
        self.node = node
        self._js = bus.jetstream(1.0)

    async def info(self) -> StreamInfo | None:
        """The log as its leader sees it, None while there is none."""
        try:
            return await self._js.stream_info(log_stream("s0"))
        except (nats.errors.Error, TimeoutError):
            return None

    async def healthy(self) -> str:
        """Wait until the log has a leader and two followers that have everything; the leader."""
        end = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < end:
            info = await self.info()
            if info is not None and info.cluster is not None and info.cluster.leader:
                followers = info.cluster.replicas or []
                if len(followers) == 2 and all(each.current and not each.offline for each in followers):
                    return info.cluster.leader
            await asyncio.sleep(0.1)
        raise AssertionError("the log has no three replicas")

    async def led_by_another(self, name: str) -> None:
        """Wait until another server than this leads the log."""
        end = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < end:
            info = await self.info()
            if info is not None and info.cluster is not None and info.cluster.leader not in (None, "", name):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the log has no leader but {name}")

    async def streams_during(self, label: str, disturb: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Streams that run while something happens must be whole, and what the log says."""
        async with connect(self.node.url) as client:
            bodies = [body(number, label) for number in range(NUM_STREAMS)]
            tasks = await all_running(client, "/v1/completions", bodies)
            await disturb()
            answers = await asyncio.gather(*tasks)
        assert [answer.error for answer in answers if not answer.whole] == []
        assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
        await self.healthy()
        report = await asyncio.to_thread(self.node.verify)
        assert wrongs(report) == {}
        for answer in answers:
            logged = report["requests"][answer.id.removeprefix("cmpl-")]
            assert logged == logged | {"token_ids": answer.token_ids, "finish_reason": "length"}


def body(number: int, label: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": f"{label} {number}",
        "max_tokens": NUM_TOKENS,
        "min_tokens": NUM_TOKENS,
        "ignore_eos": True,
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def node(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    options = (*OPTIONS, "--nats", cluster.url, "--nats-credentials", str(cluster.identities.root))
    with RunningNode(tmp_path_factory.mktemp("node") / "node", *options) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Credentials:
    return credentials_of(cluster.identities, "admin")


@pytest_asyncio.fixture
async def running(cluster: LocalCluster, node: RunningNode, admin: Credentials) -> AsyncIterator[Fixture]:
    bus = await Bus.connect(cluster.url, "admin-1", admin)
    yield Fixture(cluster, node, bus)
    await bus.close()


def kill(running: Fixture, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """kill -9, and a start again once another server leads."""

    async def disturb() -> None:
        await asyncio.to_thread(running.cluster.kill, name)
        await running.led_by_another(name)
        await asyncio.to_thread(running.cluster.restart, name)

    return disturb


def stop(running: Fixture, name: str, stall_s: float) -> Callable[[], Coroutine[Any, Any, None]]:
    """SIGSTOP for stall_s, and at least until another server leads."""

    async def disturb() -> None:
        with running.cluster.stopped(name):
            await asyncio.sleep(stall_s)
            await running.led_by_another(name)

    return disturb


async def test_the_server_that_leads_the_log_may_die_or_stop(running: Fixture) -> None:
    before = running.node.pids()
    await running.streams_during("killed", kill(running, await running.healthy()))
    await running.streams_during("stopped", stop(running, await running.healthy(), STALL_S))
    assert running.node.pids() == before, "a service ended"


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_every_server_may_die_or_stop_for_30_seconds(running: Fixture) -> None:
    before = running.node.pids()
    for name in NAMES:
        await running.streams_during(f"killed {name}", kill(running, name))
        await running.streams_during(f"stopped {name}", stop(running, name, 30.0))
    await running.streams_during("meta killed", kill(running, running.cluster.meta_leader))
    await running.streams_during("meta stopped", stop(running, running.cluster.meta_leader, 30.0))
    assert running.node.pids() == before, "a service ended"
