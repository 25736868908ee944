"""The engine's thread: order, epochs, and steps that raise."""

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog
import torch

from services.worker.core.plan_columns import PlanColumns
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.engine.isolation import EngineBroken, is_sticky, step_one_by_one
from services.worker.engine_thread import EngineFailed, EngineThread, EpochOpened, Outcome, StepDropped
from services.worker.step_runner import MAX_FAILURES_IN_A_ROW, StepDone
from shared.messages.pipeline import StepPlan
from shared.messages.sampling import Sampling
from tests.waiting import LIMIT_S
from tests.worker.engines import BLOCK_SIZE, MemoryEngine, PipelinedMemoryEngine, continuation, make_executor
from tests.worker.plans import Planned, SmallLeader, rows_of

# As shared.logs makes it: rich's tracebacks, the default, keep what they show.
LOG = structlog.wrap_logger(
    structlog.PrintLogger(), [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
)


class Bench:
    """A thread with a small leader in front of it."""

    engine_class: type[MemoryEngine] = MemoryEngine

    def __init__(self) -> None:
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.engine = self.engine_class()
        self.thread = EngineThread(
            self.engine,
            make_executor(),
            self.outcomes.put,
            LOG,
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


@pytest.fixture(autouse=True, params=[MemoryEngine, PipelinedMemoryEngine])
def engine_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test, with an engine that computes while it is asked, and one that has a queue."""
    monkeypatch.setattr(Bench, "engine_class", request.param)


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
        alone = steps[-1:] if isinstance(bench.engine, PipelinedMemoryEngine) else steps
        assert all(done.overhead_s > 0 for done in alone), "of those which no other step covers"


def test_only_what_the_engine_could_have_gone_on_with_makes_it_wait() -> None:
    with running() as bench:
        bench.open_epoch(1)
        bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=1)))
        bench.submit()
        assert bench.next_step().wait_s is None, "it was new"
        bench.leader.remove(1)
        bench.submit()
        assert bench.next_step().wait_s is None, "nothing but forgetting"
        bench.leader.add(Planned(2, [1, 2], Sampling(max_tokens=3, eos_token_ids=continuation([1, 2], 1))))
        bench.submit()
        assert bench.next_step().wait_s is None, "new again, after a time without work"
        bench.leader.add(Planned(3, [3], Sampling(max_tokens=3)))
        bench.submit()
        assert bench.next_step().wait_s is None, "the other one has ended, which the leader did not know"
        bench.submit()
        assert bench.next_step().wait_s is not None


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


def fail_once(bench: Bench, error: Exception) -> None:
    """The next step raises, whatever is in it; those after it do not."""
    step = bench.engine.step

    def failing(batch: StepInput) -> StepOutput:
        bench.engine.step = step  # type: ignore[method-assign]
        raise error

    bench.engine.step = failing  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("error", "failure"), [(MemoryError(), "out_of_memory"), (RuntimeError("a kernel failed"), "exception")]
)
def test_a_passing_failure_costs_nobody_anything(error: Exception, failure: str) -> None:
    with running() as bench:
        bench.open_epoch(1)
        sequences = [Planned(number, [1, 2, number], Sampling(max_tokens=3)) for number in range(4)]
        for sequence in sequences:
            bench.leader.add(sequence)
        for number in range(3):
            if number == 1:
                fail_once(bench, error)
            bench.submit()
            done = bench.next_step()
            assert done.frame.errors == []
            assert done.failure == (failure if number == 1 else None)
        assert [sequence.outputs for sequence in sequences] == [continuation([1, 2, n], 3) for n in range(4)]


def test_the_memory_of_the_failed_step_is_free_before_the_next_try() -> None:
    """An exception keeps the frames that it passed through, and they keep the step's memory."""
    with running() as bench:
        bench.open_epoch(1)
        for number in range(2):
            bench.leader.add(Planned(number, [1, 2, number], Sampling(max_tokens=1)))
        step = bench.engine.step
        activations: list[weakref.ref[Activation]] = []
        kept: list[bool] = []

        def short_of_memory(batch: StepInput) -> StepOutput:
            kept.append(any(each() is not None for each in activations))
            activation = Activation()
            activations.append(weakref.ref(activation))
            if len(batch.context_lens) > 1 or 1 in batch.token_ids[-1:]:
                raise MemoryError
            return step(batch)

        bench.engine.step = short_of_memory  # type: ignore[method-assign]
        bench.submit()
        assert [error.sequence for error in bench.next_step().frame.errors] == [1]
        assert kept == [False, False, False]


class Activation:
    """Something large."""


def test_three_steps_without_memory_end_the_thread_with_the_reason() -> None:
    with running() as bench:
        bench.open_epoch(1)
        for number in range(2):
            bench.leader.add(Planned(number, [1, number], Sampling(max_tokens=9)))
        step = bench.engine.step

        def only_one_fits(batch: StepInput) -> StepOutput:
            if len(batch.context_lens) > 1:
                raise MemoryError
            return step(batch)

        bench.engine.step = only_one_fits  # type: ignore[method-assign]
        for _ in range(MAX_FAILURES_IN_A_ROW - 1):
            bench.submit()
            assert bench.next_step().frame.errors == []
        bench.submit()
        outcome = bench.next_outcome()
        assert isinstance(outcome, EngineFailed)
        assert "out_of_memory" in str(outcome.error)


def test_it_says_for_how_long_it_has_been_busy() -> None:
    with running() as bench:
        bench.open_epoch(1)
        bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=1)))
        begun, may_end = threading.Event(), threading.Event()
        token = bench.engine.next_token

        def wait(context: list[int]) -> int:
            begun.set()
            may_end.wait(LIMIT_S)
            return token(context)

        bench.engine.next_token = wait
        assert bench.thread.busy_s == 0
        bench.submit()
        assert begun.wait(LIMIT_S)
        first = bench.thread.busy_s
        while bench.thread.busy_s <= first:
            pass
        may_end.set()
        bench.next_step()
        assert bench.thread.busy_s == 0


class CUDADriverError(RuntimeError):
    """As CuPy names one."""


@pytest.mark.parametrize("kind", [torch.AcceleratorError, CUDADriverError, EngineBroken])
def test_nothing_is_asked_of_a_device_whose_context_is_lost(kind: Callable[[str], RuntimeError]) -> None:
    """Each sequence alone would fail as well, and be blamed for it."""
    steps: list[StepInput] = []

    def fail(batch: StepInput) -> StepOutput:
        steps.append(batch)
        raise kind("CUDA error: an illegal memory access was encountered")

    with running() as bench:
        bench.open_epoch(1)
        for number in range(2):
            bench.leader.add(Planned(number, [1, 2], Sampling(max_tokens=3)))
        bench.engine.step = fail  # type: ignore[method-assign]
        bench.submit()
        outcome = bench.next_outcome()
        assert isinstance(outcome, EngineFailed)
        assert isinstance(outcome.error, EngineBroken)
        assert "illegal memory access" in str(outcome.error)
    assert len(steps) == 1


def test_a_device_without_memory_has_not_lost_its_context() -> None:
    assert not is_sticky(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_sticky(torch.AcceleratorError("CUDA error: out of memory"))
    assert not is_sticky(RuntimeError("shape mismatch"))


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


@pytest.mark.parametrize("num_without_memory", [1, 2])
def test_one_sequence_without_memory_fails_two_are_the_machines_fault(num_without_memory: int) -> None:
    leader, executor, engine = SmallLeader(BLOCK_SIZE), make_executor(), MemoryEngine()
    leader.open_epoch(1)
    for number in range(4):
        leader.add(Planned(number, [1, 100 + number], Sampling(max_tokens=2)))
    plan = leader.make_plan()
    assert plan is not None
    batch = executor.begin(PlanColumns(plan)).batch
    assert batch is not None
    step = engine.step

    def short_of_memory(batch: StepInput) -> StepOutput:
        if (batch.token_ids >= 104 - num_without_memory).any():
            raise MemoryError
        return step(batch)

    engine.step = short_of_memory  # type: ignore[method-assign]
    if num_without_memory == 1:
        assert list(step_one_by_one(engine, batch).failed) == [3]
    else:
        with pytest.raises(EngineBroken, match="no memory for 2 of 4 sequences"):
            step_one_by_one(engine, batch)
