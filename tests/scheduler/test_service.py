"""Schedulers on a real nats-server: who leads, a new term, and a stop while the log is away."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.registry import REGISTRY

from services.scheduler import service as scheduler_service
from services.scheduler.config import SchedulerConfig
from services.scheduler.core import leadership, readership
from services.scheduler.service import MAX_WORKER_FENCES, SchedulerService
from shared import subjects
from shared.bus.client import Bus
from shared.bus.log_tail import NatsTail
from shared.bus.nats_log import NatsLog
from shared.messages.codec import decoder, encode
from shared.messages.control import GatewayHeartbeat, LeaderHeartbeat
from shared.messages.pipeline import Fence
from shared.service import ServiceHost
from tests.log.records import request
from tests.servers import NatsServer
from tests.service_process import start
from tests.waiting import LIMIT_S, until

RID = "a" * 32


@contextlib.asynccontextmanager
async def serving(server: NatsServer) -> AsyncIterator[SchedulerService]:
    """A scheduler in this process."""
    config = SchedulerConfig(nats=server.url)
    host = ServiceHost("scheduler", config)
    host.bus = await Bus.connect(server.url, host.name)
    service = SchedulerService(host, config, await NatsLog.open(host.bus, config.shard))
    running = asyncio.create_task(service.run())
    try:
        await until(lambda: service.tail_live or running.done(), "the log")
        yield service
    finally:
        host.stopping.set()
        await asyncio.wait_for(running, LIMIT_S)
        await host.bus.close()
        REGISTRY.unregister(service._metrics)


@contextlib.asynccontextmanager
async def leading(server: NatsServer) -> AsyncIterator[SchedulerService]:
    """A scheduler in this process that leads."""
    async with serving(server) as service:
        await until(lambda: service.leader is not None, "leadership")
        yield service


async def test_fenced_workers_are_forgotten_by_a_take_over_from_oneself(nats_server: NatsServer) -> None:
    """Only a take-over makes every fold forget fences alike; what lives is taken over as from any leader."""
    async with leading(nats_server) as service:
        log, fold, first_term = service._log, service.fold, service.leader
        await log.append("req", encode(request(RID)), RID)
        takeover = fold.takeover
        for number in range(MAX_WORKER_FENCES):
            newest = await fence(log, f"w{number}")
        await until(lambda: fold.newest_fence == newest, "fences")
        assert (len(fold.worker_fences), fold.takeover) == (MAX_WORKER_FENCES, takeover)
        newest = await fence(log, "last")
        await until(lambda: fold.takeover > newest, "a new term")
        assert fold.leader == service._host.name and not fold.worker_fences
        assert service.leader is not None and service.leader is not first_term
        assert service.leader.core.num_waiting == 1


async def fence(log: NatsLog, worker: str) -> int:
    """A worker's fence, as if this leader had written it; retried, so that a busy machine does not matter."""
    return await log.append("fence", encode(Fence(kind="worker", leader="", worker=worker)), f"fence-{worker}")


async def test_gateways_that_are_heard_keep_their_requests_and_silent_ones_lose_them(nats_server: NatsServer) -> None:
    async with leading(nats_server) as service:
        bus = await Bus.connect(nats_server.url, "gateway-1")
        beating = asyncio.create_task(beat(bus, "g1"))
        for number, gateway in ((1, "g1"), (2, "g2"), (3, "")):
            record = replace(request(f"{number:032x}"), owner=gateway)
            await service._log.append("req", encode(record), f"req-{number}")
        requests = service.fold.requests
        await until(lambda: len(requests) == 3 and requests[f"{2:032x}"].ended, "the end of the silent gateway's")
        ends = [state.sequences[0].reason for state in requests.values()]
        assert ends == [None, "cancel", None]
        beating.cancel()
        await until(lambda: requests[f"{1:032x}"].ended, "the end of the other's")
        assert requests[f"{3:032x}"].sequences[0].reason is None
        await bus.close()


async def test_a_silent_gateway_that_listens_keeps_its_requests_until_its_connection_ends(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server knows; a process that stands still has its sockets open."""
    monkeypatch.setattr(readership, "GATEWAY_SILENCE_S", 0.0)
    async with leading(nats_server) as service:
        bus = await Bus.connect(nats_server.url, "gateway-1")
        asked: list[bytes] = []
        await bus.subscribe(subjects.gateway("g1"), lambda subject, reply, data, headers: asked.append(data))
        await service._log.append("req", encode(replace(request(RID), owner="g1")), "req-1")
        await until(lambda: len(asked) >= 3, "questions")
        assert not service.fold.requests[RID].ended
        await bus.close()
        await until(lambda: service.fold.requests[RID].ended, "the end")
        assert service.fold.requests[RID].sequences[0].reason == "cancel"


async def beat(bus: Bus, gateway: str) -> None:
    while True:
        bus.publish(subjects.GATEWAY_HEARTBEAT, encode(GatewayHeartbeat(gateway=gateway)))
        await asyncio.sleep(scheduler_service.HEARTBEAT_S)


async def test_a_scheduler_that_is_told_to_stop_before_it_knows_the_log_goes(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be away for long, and a drain that waits for it would end as a failure."""
    starting = asyncio.Event()

    async def start_for_ever(tail: NatsTail) -> None:
        starting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(NatsTail, "start", start_for_ever)
    config = SchedulerConfig(nats=nats_server.url)
    host = ServiceHost("scheduler", config)
    host.bus = await Bus.connect(nats_server.url, host.name)
    service = SchedulerService(host, config, await NatsLog.open(host.bus, config.shard))
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(starting.wait(), LIMIT_S)
    host.stopping.set()
    await asyncio.wait_for(running, LIMIT_S)
    await host.bus.close()
    REGISTRY.unregister(service._metrics)


async def test_an_idle_leader_that_goes_leaves_no_gap(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to wait for; its last heartbeat offers the lead, so that nobody waits for its silence."""
    heard, log = await hear_leaders(nats_server), tmp_path / "log"
    process = start([sys.executable, "-m", "services.scheduler", "--nats", nats_server.url], log)
    try:
        await until(lambda: heard.beats, "leadership")
        monkeypatch.setattr(leadership, "LEADER_SILENCE_S", float("inf"))
        async with serving(nats_server) as standby:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, LIMIT_S) == 0, log.read_text()
            await until(lambda: standby.leader is not None, "the hand-over")
    finally:
        await heard.bus.close()
        if process.poll() is None:
            process.kill()
            process.wait()


class Leaders:
    """Who hears the heartbeats of leaders."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.beats: list[LeaderHeartbeat] = []


async def hear_leaders(server: NatsServer) -> Leaders:
    heard = Leaders(await Bus.connect(server.url, "test-1"))
    decode = decoder(LeaderHeartbeat)
    await heard.bus.subscribe(
        subjects.leader_heartbeat("s0"), lambda _s, _r, data, _h: heard.beats.append(decode(data))
    )
    return heard


async def test_a_leader_that_is_told_to_stop_while_the_log_is_away_exits_0(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    options = ("--nats", nats_server.url, "--drain-timeout-s", "10", "--log-format", "json")
    log = tmp_path / "log"
    process = start([sys.executable, "-m", "services.scheduler", *options], log)
    heard = await hear_leaders(nats_server)
    try:
        await until(lambda: heard.beats, "leadership")
        await (await NatsLog.find(heard.bus, "s0")).append("req", encode(request(RID)), RID)
        await until(lambda: heard.beats[-1].load.num_queued_reqs == 1, "the request")
        await asyncio.to_thread(nats_server.kill)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, LIMIT_S) == 0, log.read_text()
    finally:
        await heard.bus.close()
        if process.poll() is None:
            process.kill()
            process.wait()
