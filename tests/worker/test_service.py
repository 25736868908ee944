"""The worker on a real nats-server, driven by a hand-written leader; the fold of the log says what arrived."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.worker.config import WorkerConfig
from services.worker.engine.fake import FakeEngine, FakeMode
from services.worker.engine.interface import Engine, StepInput, StepOutput
from services.worker.engine.isolation import EngineBroken
from services.worker.metrics import WorkerMetrics
from services.worker.service import Worker
from services.worker.step_runner import MAX_FAILURES_IN_A_ROW
from shared import subjects
from shared.bus.client import Bus
from shared.bus.nats_log import DEFAULT_MAX_BYTES, NatsLog
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Fence
from shared.messages.sampling import Sampling
from shared.service import ServiceHost
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until
from tests.worker.plans import Planned
from tests.worker.stub_leader import StubLeader
from tests.worker.test_fake_engine import batch_of, row

VOCAB_SIZE = 1000


def make_engine(mode: FakeMode = "pure", step_s: float = 0.005) -> FakeEngine:
    return FakeEngine(
        model="m",
        model_version="1",
        vocab_size=VOCAB_SIZE,
        token_ids=np.arange(10, VOCAB_SIZE, dtype=np.int32),
        num_blocks=4096,
        block_size=16,
        max_model_len=512,
        step_s=step_s,
        mode=mode,
    )


class Shard:
    """One worker and its leader."""

    def __init__(self, host: ServiceHost, worker: Worker, leader: StubLeader, registry: CollectorRegistry) -> None:
        self.host = host
        self.worker = worker
        self.leader = leader
        self.registry = registry
        self.running = asyncio.get_running_loop().create_task(worker.run())

    def count(self, metric: str, **labels: str) -> float:
        """Value of a metric now."""
        return self.registry.get_sample_value(metric, labels) or 0.0

    async def ask(self, count: int, max_tokens: int = 30) -> list[Planned]:
        """Requests of different length with seeds of their own."""
        return [
            await self.leader.ask(number, list(range(1, 2 + number % 40)), Sampling(max_tokens=max_tokens, seed=number))
            for number in range(count)
        ]

    async def finish(self, sequences: list[Planned]) -> None:
        """Wait for all ends, then look at what the fold counted."""
        await until(lambda: all(self.leader.is_done(sequence) for sequence in sequences), "all ends")
        counts = self.leader.fold.counts
        assert counts["prefix_mismatched"] == counts["row_missing"] == counts["row_foreign"] == counts["malformed"] == 0
        for sequence in sequences:
            assert len(self.leader.tokens(sequence)) == sequence.sampling.max_tokens


@asynccontextmanager
async def shard(
    server: NatsServer,
    engine: Engine,
    drop_plans: float = 0.0,
    drop_frames: float = 0.0,
    log_max_bytes: int = DEFAULT_MAX_BYTES,
    engine_stuck_s: float = 10.0,
) -> AsyncIterator[Shard]:
    """A worker that is up; it is stopped as SIGTERM would, and must leave in order."""
    config = WorkerConfig(nats=server.url, test_drop_frames=drop_frames, engine_stuck_s=engine_stuck_s)
    host = ServiceHost("worker", config)
    await host.connect()
    leader_bus = await Bus.connect(server.url, "stub-leader")
    try:
        log = await NatsLog.open(leader_bus, config.shard, log_max_bytes)
        registry = CollectorRegistry()
        worker = Worker(host, config, engine, NatsLog(host.bus, config.shard), WorkerMetrics(registry))
        leader = StubLeader(leader_bus, log, drop_plans)
        await leader.start()
        running = Shard(host, worker, leader, registry)
        try:
            await until(lambda: leader.heartbeats, "the first heartbeat")
            yield running
        finally:
            host.stopping.set()
            await asyncio.wait_for(running.running, LIMIT_S)
            await until(lambda: leader.heartbeats[-1].leaving, "the heartbeat that says it leaves")
            await leader.stop()
    finally:
        await host.bus.close()
        await leader_bus.close()


def pure_tokens(sequence: Planned) -> list[int]:
    """What pure mode makes of a seed, from the engine itself, one position at a time."""
    engine = make_engine(step_s=0.0)
    num_tokens = sequence.sampling.max_tokens
    return engine.step(batch_of([row(sequence.sampling.seed)] * num_tokens, [*range(num_tokens)])).tokens.tolist()


async def test_streams_are_whole_and_batched(nats_server: NatsServer) -> None:
    async with shard(nats_server, make_engine()) as running:
        sequences = await running.ask(20)
        await running.finish(sequences)
        for sequence in sequences:
            assert running.leader.tokens(sequence) == pure_tokens(sequence)
        assert running.leader.plans.step < 200, "steps are shared"
        num_frames = running.count("tokenbus_worker_frames_total")
        stored = "tokenbus_worker_frame_stored_seconds_count"
        await until(lambda: running.count(stored) == num_frames, "all acknowledgements")
        health = running.host.check_health()
        assert health.ready
        assert health.details["device"] == "fake"
        assert health.details["log"] == "ok"


@pytest.mark.parametrize("what", ["plans", "frames"])
async def test_losses_are_repaired(nats_server: NatsServer, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules 4 and 5 on the wire: a tenth of all plans, or of all frames, never arrives."""
    chances = itertools.cycle([0.0] + 9 * [1.0])  # every tenth frame, without luck
    monkeypatch.setattr("services.worker.frame_sender.random.random", lambda: next(chances))
    losses = {"drop_plans": 0.1} if what == "plans" else {"drop_frames": 0.1}
    async with shard(nats_server, make_engine("chained"), **losses) as running:
        await running.finish(await running.ask(8))
        resent = running.count("tokenbus_worker_frames_resent_total")
        assert bool(running.leader.gaps) == (what == "plans")
        if what == "frames":  # with plans lost, a slow acknowledgement may have a frame sent again too
            assert resent > 0


async def test_frames_survive_the_death_of_nats_server(nats_server: NatsServer) -> None:
    async with shard(nats_server, make_engine("chained", 0.01)) as running:
        sequences = await running.ask(8, max_tokens=60)
        await until(lambda: running.leader.fold.folded_step(running.worker.name) > 10, "ten frames")
        await asyncio.to_thread(nats_server.kill)
        await asyncio.to_thread(nats_server.restart)
        await running.finish(sequences)
        assert len(running.leader.reports) == 1, "no new epoch was needed"


async def test_rule_04_a_log_that_refuses_is_told_of_and_loses_nothing(nats_server: NatsServer) -> None:
    async with shard(nats_server, make_engine("chained"), log_max_bytes=16_384) as running:
        sequences = await running.ask(8, max_tokens=100)
        await until(lambda: running.host.check_health().details["log"] != "ok", "a refusal in the health")
        assert not running.host.check_health().ready
        await until(lambda: running.count("tokenbus_worker_frames_outstanding") > 0, "frames that are kept")
        while not all(running.leader.is_done(sequence) for sequence in sequences):
            await running.leader.log.trim(running.leader.fold.seq - 1)
            await asyncio.sleep(0.02)
        await running.finish(sequences)
        await until(lambda: running.host.check_health().ready, "readiness again")


async def test_rule_10_a_new_epoch_gets_a_report_and_sequences_go_on(nats_server: NatsServer) -> None:
    async with shard(nats_server, make_engine("chained", 0.01)) as running:
        leader = running.leader
        sequences = await running.ask(8, max_tokens=60)
        await until(lambda: leader.fold.folded_step(running.worker.name) > 20, "twenty frames")
        first_epoch = leader.plans.epoch
        await leader.fence(Fence(kind="worker", leader="stub", worker=running.worker.name))
        await running.finish(sequences)
        last = leader.reports[-1]
        assert last.epoch == leader.plans.epoch > first_epoch
        assert len(unpack_tokens(last.block_ids)) * 16 == len(last.block_hashes) > 0


async def test_it_beats_during_a_long_step(nats_server: NatsServer) -> None:
    async with shard(nats_server, make_engine(step_s=1.2)) as running:
        leader = running.leader
        sequences = await running.ask(1, max_tokens=1)
        await until(lambda: any(not beat.idle for beat in leader.heartbeats), "a heartbeat that says it is busy")
        await running.finish(sequences)
        during = [beat for beat in leader.heartbeats if (beat.started, beat.finished) == (1, 0) and not beat.idle]
        assert len(during) >= 3
        await until(lambda: leader.heartbeats[-1].finished == 1 and leader.heartbeats[-1].idle, "an idle heartbeat")


async def test_n1_to_n4_garbage_on_its_subjects_costs_nothing(nats_server: NatsServer) -> None:
    async with shard(nats_server, make_engine()) as running:
        garbage = [
            b"",
            b"\xc1",
            b"\x91" * 100_000,
            b"\xdd\xff\xff\xff\xff",
            b"\x92\xa4plan",
            b'{"epoch": 1}',
            b"\x93\xa5other\x01\x01",
            b"\x93\xa5epoch\x09\x01",
            b"\x94\xa4plan\x01\x01\xc7\x01\x05\x00",
        ]
        for data in garbage:
            running.leader.bus.publish(subjects.plan(running.worker.name), data)
            running.leader.bus.publish(f"{running.worker.frames.inbox}.1.1", data or b"x")
            running.leader.bus.publish(f"{running.worker.frames.inbox}.x.y", data or b"x")
        sequences = await running.ask(3)
        await running.finish(sequences)
        assert running.count("tokenbus_worker_messages_dropped_total", reason="malformed") >= 2 * len(garbage)


async def test_a_dying_engine_ends_the_process(nats_server: NatsServer) -> None:
    engine = make_engine()

    def lose_the_device(batch: StepInput) -> StepOutput:
        raise RuntimeError("device lost")

    engine.step = engine.launch = lose_the_device  # type: ignore[method-assign, assignment]
    with pytest.raises(EngineBroken):
        async with shard(nats_server, engine) as running:
            await running.ask(2 * MAX_FAILURES_IN_A_ROW)
            await asyncio.wait_for(running.running, LIMIT_S)


async def test_an_error_on_the_way_to_the_log_ends_the_process(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand still otherwise, with a step that is neither running nor done."""

    def fail(*_: object) -> None:
        raise ValueError("unforeseen")

    with pytest.raises(ValueError, match="unforeseen"):
        async with shard(nats_server, make_engine()) as running:
            monkeypatch.setattr(running.worker.window, "add", fail)
            await running.ask(1)
            await asyncio.wait_for(running.running, LIMIT_S)
