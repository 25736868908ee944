"""Who creates the log: a scheduler, with its limit; all others wait until it is there."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log.port import LogTooLarge, TooFewServers
from tests.servers import NatsServer
from tests.waiting import LIMIT_S


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(nats_server.url, "test-1")
    yield bus
    await bus.close()


async def test_the_limit_is_the_schedulers_whoever_comes_first(bus: Bus) -> None:
    finding = asyncio.ensure_future(NatsLog.find(bus, "s0"))
    await asyncio.sleep(0.2)
    assert not finding.done()
    await NatsLog.open(bus, "s0", max_bytes=1_000_000)
    found = await asyncio.wait_for(finding, LIMIT_S)
    info = await bus.jetstream(LIMIT_S).stream_info(found.stream)
    assert info.config.max_bytes == 1_000_000


async def test_a_log_beyond_the_servers_storage_is_refused(bus: Bus) -> None:
    with pytest.raises(LogTooLarge, match="no storage left for a log of 1152921504606846976 bytes"):
        await asyncio.wait_for(NatsLog.open(bus, "s0", max_bytes=1 << 60), LIMIT_S)


async def test_replicas_without_a_cluster_are_refused(bus: Bus) -> None:
    with pytest.raises(TooFewServers, match="3 replicas need a NATS cluster"):
        await asyncio.wait_for(NatsLog.open(bus, "s0", replicas=3), LIMIT_S)


async def test_a_search_without_end_can_be_cancelled(bus: Bus) -> None:
    finding = asyncio.ensure_future(NatsLog.find(bus, "s0"))
    await asyncio.sleep(0.2)
    finding.cancel()
    await asyncio.wait({finding}, timeout=LIMIT_S)
    assert finding.cancelled()
