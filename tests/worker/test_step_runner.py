"""Steps that are begun while another one runs: what a device with a queue is given, and what comes of it."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from services.worker import step_runner
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.engine.isolation import EngineBroken
from services.worker.engine_thread import EngineFailed, EpochOpened, StepDropped
from services.worker.step_runner import StepDone
from shared.messages.sampling import Sampling
from tests.waiting import LIMIT_S, until_now
from tests.worker.engines import PipelinedMemoryEngine, continuation
from tests.worker.plans import Planned, rows_of
from tests.worker.test_engine_thread import Bench

BAD_SEED = 13


class PipelinedBench(Bench):
    engine_class = PipelinedMemoryEngine
    engine: PipelinedMemoryEngine


@pytest.fixture
def bench() -> Iterator[PipelinedBench]:
    bench = PipelinedBench()
    bench.thread.start()
    bench.open_epoch(1)
    yield bench
    bench.engine.may_tell.set()
    assert bench.thread.stop(LIMIT_S)


def hold_two_steps(bench: PipelinedBench) -> None:
    """Nothing of either is told."""
    bench.engine.may_tell.clear()
    bench.submit()
    bench.submit()
    until_now(lambda: bench.engine.num_launched == 2, "both steps are launched")
    assert bench.engine.num_told == 0


def test_a_step_is_launched_before_the_one_before_it_has_told_its_tokens(bench: PipelinedBench) -> None:
    sequences = [Planned(number, [1, 2, number], Sampling(max_tokens=6)) for number in range(3)]
    for sequence in sequences:
        bench.leader.add(sequence)
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    for _ in range(4):
        bench.submit()
    done = [bench.next_step() for _ in range(6)]
    assert [each.frame.step for each in done] == [1, 2, 3, 4, 5, 6]
    assert [sequence.outputs for sequence in sequences] == [continuation([1, 2, n], 6) for n in range(3)]


def test_there_are_never_more_than_two(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    hold_two_steps(bench)
    bench.submit()
    bench.submit()
    bench.engine.may_tell.set()
    for _ in range(4):
        bench.next_step()
    assert bench.engine.num_launched == bench.engine.num_told == 4


def test_the_host_costs_nothing_while_a_step_runs(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    first, second = bench.next_step(), bench.next_step()
    assert (first.wait_s, second.wait_s) == (None, 0.0)
    assert second.computed_s >= first.computed_s
    assert 0 <= second.step_s <= second.computed_s - first.computed_s
    assert bench.thread.busy_s == 0


def test_what_the_host_does_while_another_step_runs_is_no_overhead(
    bench: PipelinedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that moves on by one whenever it is looked at."""
    monkeypatch.setattr(step_runner, "time", SimpleNamespace(perf_counter=itertools.count(1).__next__))
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    first, second = bench.next_step(), bench.next_step()
    assert first.overhead_s == 1, "from its plan to its launch"
    assert second.overhead_s > 0, "from its end to its frame"


def test_a_sequence_that_ends_is_dropped_from_the_step_behind(bench: PipelinedBench) -> None:
    eos = continuation([1, 2], 1)
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9, eos_token_ids=tuple(eos))))
    bench.leader.add(Planned(2, [3, 4], Sampling(max_tokens=9)))
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    frames = [bench.next_step().frame, bench.next_step().frame]
    assert [[row.sequence for row in rows_of(frame)] for frame in frames] == [[1, 2], [2]]


def test_a_step_with_nothing_to_compute_takes_no_time_and_ends_no_earlier_than_the_one_before_it(
    bench: PipelinedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the only sequence ends with a step, two plans behind which still hold it: the second one's step is begun
    while the first one's runs, and has nothing left."""
    monkeypatch.setattr(step_runner, "time", SimpleNamespace(perf_counter=itertools.count(1).__next__))
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9, eos_token_ids=tuple(continuation([1, 2], 1)))))
    hold_two_steps(bench)
    bench.submit()
    bench.engine.may_tell.set()
    done = [bench.next_step() for _ in range(3)]
    assert [each.num_tokens for each in done] == [2, 1, 0]
    assert [each.computed_s for each in done] == sorted(each.computed_s for each in done)
    assert done[1].step_s > 0 and done[2].step_s == 0
    sequence = Planned(2, [3, 4], Sampling(max_tokens=3))
    bench.leader.add(sequence)
    for _ in range(3):
        bench.submit()
        bench.next_step()
    assert sequence.outputs == continuation([3, 4], 3)


def test_a_step_that_fails_takes_the_one_behind_along_and_nobody_loses_anything(bench: PipelinedBench) -> None:
    sequences = [Planned(number, [1, 2, number], Sampling(max_tokens=4)) for number in range(3)]
    for sequence in sequences:
        bench.leader.add(sequence)
    fail_in_step(bench, 1, RuntimeError("a kernel failed"))
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    for _ in range(2):
        bench.submit()
    done = [bench.next_step() for _ in range(4)]
    assert [each.failure for each in done] == ["exception", None, None, None]
    assert [sequence.outputs for sequence in sequences] == [continuation([1, 2, n], 4) for n in range(3)]


def test_the_step_behind_may_fail_alone(bench: PipelinedBench) -> None:
    sequence = Planned(1, [1, 2, 3], Sampling(max_tokens=4))
    bench.leader.add(sequence)
    fail_in_step(bench, 2, MemoryError())
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    for _ in range(2):
        bench.submit()
    assert [bench.next_step().failure for _ in range(4)] == [None, "out_of_memory", None, None]
    assert sequence.outputs == continuation([1, 2, 3], 4)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_what_ends_with_a_failed_step_does_not_fail_the_one_behind_as_well(bench: PipelinedBench, others: int) -> None:
    """It would be computed in vain there, would fail each time, and three failures in a row end the worker."""
    bad = Planned(7, [1, 2], Sampling(max_tokens=9, seed=BAD_SEED))
    good = [Planned(number, [3, 4, number], Sampling(max_tokens=9)) for number in range(others)]
    for sequence in [bad, *good]:
        bench.leader.add(sequence)
    step = bench.engine.step

    def fail_on_bad(batch: StepInput) -> StepOutput:
        if any(row.sampling.seed == BAD_SEED for row in batch.rows):
            raise RuntimeError("a kernel failed")
        return step(batch)

    bench.engine.step = fail_on_bad  # type: ignore[method-assign]
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    first, behind = bench.next_step(), bench.next_step()
    assert [error.sequence for error in first.frame.errors] == [7] and not behind.frame.errors
    assert (first.failure, behind.failure) == ("exception", None)
    assert behind.num_tokens == others
    bench.leader.remove(7)
    for _ in range(2 if others else 0):
        bench.submit()
        assert bench.next_step().failure is None
    assert all(sequence.outputs == continuation(sequence.prompt, 4) for sequence in good)


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_that_cannot_be_launched_is_computed_when_its_turn_comes(bench: PipelinedBench, step: int) -> None:
    sequence = Planned(1, [1, 2, 3], Sampling(max_tokens=4))
    bench.leader.add(sequence)
    launch = bench.engine.launch

    def fail_once(batch: StepInput) -> object:
        if bench.engine.num_launched == step - 1:
            bench.engine.num_launched += 1
            raise MemoryError
        return launch(batch)

    bench.engine.launch = fail_once  # type: ignore[method-assign, assignment]
    for _ in range(4):
        bench.submit()
    done = [bench.next_step() for _ in range(4)]
    assert [each.failure for each in done] == ["out_of_memory" if n == step else None for n in range(1, 5)]
    assert sequence.outputs == continuation([1, 2, 3], 4)


def test_what_ends_one_sequence_in_the_first_step_does_not_end_it_again_in_the_second(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    bench.leader.add(Planned(2, [3, 4], Sampling(max_tokens=9)))
    spoil_first_row(bench)
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    frames = [bench.next_step().frame, bench.next_step().frame]
    assert [[error.sequence for error in frame.errors] for frame in frames] == [[1], []]
    assert [[row.sequence for row in rows_of(frame)] for frame in frames] == [[2], [2]]


def test_both_steps_are_dropped_when_their_epoch_is_over(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    hold_two_steps(bench)
    bench.thread.submit_epoch(2)
    bench.engine.may_tell.set()
    outcomes = [bench.next_outcome() for _ in range(3)]
    assert outcomes[:2] == [StepDropped(1, 1), StepDropped(1, 2)]
    assert isinstance(outcomes[2], EpochOpened)
    sequence = bench.leader.sequences[1]
    bench.leader.open_epoch(2)
    for _ in range(3):
        bench.submit()
    for _ in range(3):
        bench.next_step()
    assert sequence.outputs == continuation([1, 2], 3)


def test_both_steps_are_told_before_the_thread_ends(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    hold_two_steps(bench)
    assert not bench.thread.stop(0)
    bench.engine.may_tell.set()
    assert [bench.next_step().frame.step for _ in range(2)] == [1, 2]


def test_a_lost_device_is_told_by_the_step_that_lost_it(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    fail_in_step(bench, 2, EngineBroken("the device is gone"))
    hold_two_steps(bench)
    bench.engine.may_tell.set()
    assert isinstance(bench.next_outcome(), StepDone)
    outcome = bench.next_outcome()
    assert isinstance(outcome, EngineFailed)
    assert "the device is gone" in str(outcome.error)


def test_penalties_wait_for_the_tokens_that_they_count(bench: PipelinedBench) -> None:
    bench.leader.add(Planned(1, [1, 2], Sampling(max_tokens=9, presence_penalty=1.0)))
    histories: list[list[int]] = []
    step = bench.engine.step

    def look(batch: StepInput) -> StepOutput:
        histories.extend(row.history.tolist() for row in batch.rows if row.history is not None)
        return step(batch)

    bench.engine.step = look  # type: ignore[method-assign]
    for _ in range(4):
        bench.submit()
    for _ in range(4):
        bench.next_step()
    tokens = [1, 2, *continuation([1, 2], 4)]
    assert histories == [tokens[:length] for length in range(2, 6)]


def fail_in_step(bench: PipelinedBench, number: int, error: Exception) -> None:
    """The engine fails once on what is launched as step number."""
    step, is_failing = bench.engine.step, [True]

    def failing(batch: StepInput) -> StepOutput:
        if bench.engine.num_launched == number and is_failing:
            is_failing.pop()
            raise error
        return step(batch)

    bench.engine.step = failing  # type: ignore[method-assign]


def spoil_first_row(bench: PipelinedBench) -> None:
    """Row 0 of the first step, and then all that is computed from it, is not finite."""
    step = bench.engine.step

    def spoiling(batch: StepInput) -> StepOutput:
        output = step(batch)
        return StepOutput(np.array([-1, *output.tokens[1:]], dtype=np.int32), errors={0: "not finite"})

    bench.engine.step = spoiling  # type: ignore[method-assign]
