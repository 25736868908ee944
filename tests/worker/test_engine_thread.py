"""The engine's thread: order, epochs, and steps that raise."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from services.worker.core.plan_columns import PlanColumns
from services.worker.engine.isolation import EngineBroken, step_one_by_one
from services.worker.engine_thread import (
    MAX_FAILURES_IN_A_ROW,
    EngineFailed,
    EngineThread,
    EpochOpened,
    Outcome,
    StepDone,
    StepDropped,
)
from shared.messages.pipeline import StepPlan
from shared.messages.sampling import Sampling
from tests.worker.engines import BLOCK_SIZE, MemoryEngine, continuation, make_executor
from tests.worker.plans import Planned, SmallLeader, rows_of

LIMIT_S = 20.0


class Bench:
    """A thread with a small leader in front of it."""

    def __init__(self) -> None:
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.engine = MemoryEngine()
        self.thread = EngineThread(
            self.engine,
            make_executor(),
            self.outcomes.put,
            structlog.get_logger(),
        )
        self.leader = SmallLeader(BLOCK_SIZE)

    def open_epoch(self, epoch: int) -> None:
        self.leader.open_epoch(epoch)
        self.thread.submit_epoch(epoch)
        outcome = self.next_outcome()
        while isinstance(outcome, StepDropped):
            outcome = self.next_outcome()
        assert isinstance(outcome, EpochOpened) and outcome.epoch == epoch

    def submit(self) -> StepPlan:
        plan = self.leader.make_plan()
        assert plan is not None
        self.thread.submit_plan(PlanColumns(plan))
        return plan

    def next_outcome(self) -> Outcome:
        return self.outcomes.get(timeout=LIMIT_S)

    def next_step(self) -> StepDone:
        outcome = self.next_outcome()
        assert isinstance(outcome, StepDone), outcome
        self.leader.update(outcome.frame)
        return outcome


@contextmanager
def running() -> Iterator[Bench]:
    bench = Bench()
    bench.thread.start()
    try:
        yield bench
    finally:
        assert bench.thread.stop(LIMIT_S)


def test_steps_come_back_in_order() -> None:
    with running() as bench:
        bench.open_epoch(1)
        sequence = Planned(1, [1, 2, 3], Sampling(max_tokens=5))
        bench.leader.add(sequence)
        for _ in range(5):
            bench.submit()
        steps = [bench.next_step() for _ in range(5)]
        assert [done.frame.step for done in steps] == [1, 2, 3, 4, 5]
        assert sequence.outputs == continuation([1, 2, 3], 5)
        assert bench.thread.begun == (1, 5)
        assert steps[0].wait_s is None, "nothing was there to be continued"
        assert all(done.wait_s is not None for done in steps[1:])


def test_plans_of_an_older_epoch_are_dropped() -> None:
    with running() as bench:
        bench.open_epoch(1)
        bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=5)))
        bench.submit()
        bench.next_step()
        bench.thread.newest_epoch = 2
        bench.submit()
        assert bench.next_outcome() == StepDropped(1, 2)


def test_output_of_a_step_that_outlasted_its_epoch_is_dropped() -> None:
    with running() as bench:
        bench.open_epoch(1)
        bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=5)))
        token = bench.engine.next_token

        def fenced_meanwhile(context: list[int]) -> int:
            bench.thread.newest_epoch = 2
            return token(context)

        bench.engine.next_token = fenced_meanwhile
        bench.submit()
        assert bench.next_outcome() == StepDropped(1, 1)


def test_a_step_that_raises_costs_only_the_sequence_to_blame() -> None:
    with running() as bench:
        bench.open_epoch(1)
        good = Planned(1, [1, 2], Sampling(max_tokens=3))
        bad = Planned(2, [666, 7], Sampling(max_tokens=3))
        bench.leader.add(good)
        bench.leader.add(bad)
        bench.engine.failing = {666}
        for _ in range(3):
            bench.submit()
        first = bench.next_step().frame
        assert [error.sequence for error in first.errors] == [2]
        assert "RuntimeError" in first.errors[0].message
        assert [row.sequence for row in rows_of(first)] == [1]
        for _ in range(2):
            assert bench.next_step().frame.errors == []
        assert good.outputs == continuation([1, 2], 3)


def test_an_engine_that_fails_on_everything_ends_the_thread() -> None:
    with running() as bench:
        bench.open_epoch(1)
        bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=3)))
        bench.leader.add(Planned(2, [2, 7], Sampling(max_tokens=3)))
        bench.engine.failing = {2}
        bench.submit()
        outcome = bench.next_outcome()
        assert isinstance(outcome, EngineFailed)
        assert isinstance(outcome.error, EngineBroken)


def test_single_sequences_that_fail_one_after_the_other_end_the_thread() -> None:
    with running() as bench:
        bench.open_epoch(1)
        bench.engine.failing = {2}
        for number in range(MAX_FAILURES_IN_A_ROW - 1):
            bench.leader.add(Planned(number, [2, 7], Sampling(max_tokens=1)))
            bench.submit()
            assert [error.sequence for error in bench.next_step().frame.errors] == [number]
        bench.leader.add(Planned(99, [2, 7], Sampling(max_tokens=1)))
        bench.submit()
        assert isinstance(bench.next_outcome(), EngineFailed)


def test_one_by_one_equals_the_whole_step() -> None:
    leader, executor, engine = SmallLeader(BLOCK_SIZE, chunk=3), make_executor(), MemoryEngine()
    leader.open_epoch(1)
    for number, prompt in enumerate(([1, 2], [3, 4, 5, 6, 7], [8])):
        leader.add(Planned(number, prompt, Sampling(max_tokens=2)))
    plan = leader.make_plan()
    assert plan is not None
    batch = executor.begin(PlanColumns(plan)).batch
    assert batch is not None
    whole = engine.step(batch)
    output = step_one_by_one(engine, batch)
    assert output.tokens.tolist() == whole.tokens.tolist()
    assert (output.errors, output.failed) == ({}, {})
    engine.failing = {2, 4, 8}
    with pytest.raises(EngineBroken):
        step_one_by_one(engine, batch)
