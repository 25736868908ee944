"""Steps that do not end: the worker beats on, is not ready, and ends itself once its epoch is over."""

import asyncio
import threading

import pytest

from services.worker.core.stuck_clock import StuckClock
from services.worker.engine.interface import Launched, StepInput, StepOutput
from services.worker.service import EngineStuck
from shared.messages.pipeline import Fence
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until
from tests.worker.test_service import Shard, make_engine, shard


class Gate:
    """Holds every step up while it is closed."""

    def __init__(self) -> None:
        self.engine = make_engine("chained")
        self.open = threading.Event()
        self.open.set()
        self.num_held = 0
        self._launch = self.engine.launch
        self.engine.launch = self.launch  # type: ignore[method-assign, assignment]

    def launch(self, batch: StepInput) -> "HeldStep":
        return HeldStep(self, self._launch(batch))


class HeldStep:
    def __init__(self, gate: Gate, step: Launched) -> None:
        self._gate = gate
        self._step = step

    def wait(self) -> None:
        if not self._gate.open.is_set():
            self._gate.num_held += 1
            self._gate.open.wait(LIMIT_S)
        self._step.wait()

    def output(self) -> StepOutput:
        return self._step.output()


def state_of(running: Shard) -> tuple[bool, object]:
    health = running.host.check_health()
    return health.ready, health.details["state"]


async def hang(running: Shard, gate: Gate) -> None:
    """A step that hangs in the middle of a stream."""
    await running.ask(2, max_tokens=200)
    await until(lambda: running.leader.fold.folded_step(running.worker.name) > 5, "five frames")
    gate.open.clear()
    await until(lambda: gate.num_held, "a step that hangs")


def test_time_counts_from_the_announcement_in_ticks() -> None:
    clock = StuckClock(1.0)
    assert not clock.is_over(100.0, 0)
    assert not clock.is_over(103.0, 7), "the announcement is heard of now, whenever the last tick was"
    assert not clock.is_over(103.4, 7)
    assert not clock.is_over(103.8, 9), "a newer epoch is another announcement of the same wish"
    assert clock.is_over(104.1, 9)
    assert not clock.is_over(104.2, 0), "opened"
    assert not clock.is_over(104.3, 9)


def test_a_pause_of_the_process_counts_as_one_tick() -> None:
    clock = StuckClock(1.0)
    clock.is_over(100.0, 7)
    assert not clock.is_over(200.0, 7)
    assert not clock.is_over(200.4, 7)
    assert clock.is_over(200.6, 7)


async def test_a_step_that_outlasts_its_epoch_ends_the_worker_which_names_it(nats_server: NatsServer) -> None:
    gate = Gate()
    with pytest.raises(EngineStuck) as raised:
        async with shard(nats_server, gate.engine, engine_stuck_s=0.6) as running:
            await hang(running, gate)
            begun = running.leader.heartbeats[-1].epoch
            num_beats = len(running.leader.heartbeats)
            await running.leader.fence(Fence(kind="worker", leader="stub", worker=running.worker.name))
            await until(lambda: state_of(running) == (False, "opening an epoch"), "not ready while fenced")
            await asyncio.wait({running.running}, timeout=LIMIT_S)
            assert len(running.leader.heartbeats) > num_beats, "heartbeats go on"
            step = running.worker._thread.at_hand[1]
            gate.open.set()
    text = str(raised.value)
    assert f"step {step} of epoch {begun} still runs" in text
    assert f"epoch {running.leader.plans.epoch} was announced" in text


async def test_a_step_that_ends_in_time_opens_the_new_epoch(nats_server: NatsServer) -> None:
    gate = Gate()
    async with shard(nats_server, gate.engine) as running:
        await hang(running, gate)
        await running.leader.fence(Fence(kind="worker", leader="stub", worker=running.worker.name))
        await until(lambda: not running.host.check_health().ready, "not ready while fenced")
        gate.open.set()
        await until(lambda: running.host.check_health().ready, "ready again")
        await running.finish(list(running.leader.plans.sequences.values()))


async def test_a_long_step_alone_only_costs_the_readiness(nats_server: NatsServer) -> None:
    """Nobody has fenced it yet: the leader decides that, and perhaps there is none at the moment."""
    gate = Gate()
    async with shard(nats_server, gate.engine, engine_stuck_s=0.3) as running:
        await hang(running, gate)
        await until(lambda: state_of(running) == (False, "stuck"), "not ready")
        await until(lambda: running.worker._thread.busy_s > 1.0, "three times the limit")
        assert not running.running.done()
        gate.open.set()
        await until(lambda: running.host.check_health().ready, "ready again")
        await running.finish(list(running.leader.plans.sequences.values()))
