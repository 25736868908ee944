"""Threads and blocks in the emulator: who they are, and in which order they go on."""

import numpy as np
import pytest
import torch

from tests.kernels.emulator import probes
from tests.kernels.emulator.module import AHEAD, BACKWARD, RANDOM, SCHEDULES, Schedule


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(("grid", "block"), [((3, 2, 4), (5, 3, 2)), ((1, 1, 1), (1, 1, 1)), ((1, 7, 1), (2, 1, 33))])
def test_threads_know_who_they_are(schedule: Schedule, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    num_blocks, num_threads = int(np.prod(grid)), int(np.prod(block))
    seen = torch.full((num_blocks * num_threads, 12), -1, dtype=torch.int32)
    module = probes.load("threads", schedule)
    module.launch("tokenbus::built_ins", grid, block, (seen,))
    expected = [
        [*thread[::-1], *index[::-1], *block, *grid]
        for index in np.ndindex(grid[::-1])
        for thread in np.ndindex(block[::-1])
    ]
    assert seen.tolist() == expected
    assert module.counts.threads == num_blocks * num_threads


def turns(schedule: Schedule, num_threads: int = 70) -> list[list[int]]:
    """Of a block's threads, at its beginning and after a barrier."""
    order = torch.full((2, num_threads), -1, dtype=torch.int32)
    counters = torch.zeros(2, dtype=torch.int32)
    module = probes.load("threads", schedule)
    module.launch("tokenbus::turns_of_threads", (1, 1, 1), (num_threads, 1, 1), (order, counters))
    return [list(row) for row in order.tolist()]


def turns_of_blocks(schedule: Schedule) -> list[int]:
    """Of a grid's blocks."""
    order, counter = torch.full((24,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    probes.load("threads", schedule).launch("tokenbus::turns_of_blocks", (3, 2, 4), (1, 1, 1), (order, counter))
    return list(order.tolist())


def test_threads_take_turns_forward_and_backward() -> None:
    assert turns(Schedule()) == [list(range(70))] * 2
    assert turns(Schedule(BACKWARD)) == [list(range(70))[::-1]] * 2
    assert turns_of_blocks(Schedule()) == list(range(24))
    assert turns_of_blocks(Schedule(BACKWARD)) == list(range(24))[::-1]


def test_one_warp_gets_as_far_ahead_as_it_can() -> None:
    first, second, third = list(range(64, 70)), list(range(32, 64)), list(range(32))
    assert turns(Schedule(AHEAD)) == [first + second + third] * 2
    order, counter = torch.full((128,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    module = probes.load("threads", Schedule(AHEAD))
    module.launch("tokenbus::turns_around_a_shuffle", (1, 1, 1), (64, 1, 1), (order, counter))
    assert order.tolist() == second * 2 + third * 2


def test_random_turns_differ_by_their_seed_and_can_be_had_again() -> None:
    seeds = range(20)
    for take in (lambda seed: turns(Schedule(RANDOM, seed)), lambda seed: turns_of_blocks(Schedule(RANDOM, seed))):
        found = [take(seed) for seed in seeds]
        assert found == [take(seed) for seed in seeds]
        assert len({str(order) for order in found}) == len(seeds)
    for seed in seeds:
        at_first, after_a_barrier = turns(Schedule(RANDOM, seed))
        assert sorted(at_first) == sorted(after_a_barrier) == list(range(70))
        assert at_first != after_a_barrier
        assert sorted(turns_of_blocks(Schedule(RANDOM, seed))) == list(range(24))


def test_the_four_schedules_are_four() -> None:
    assert len({str(turns(schedule)) for schedule in SCHEDULES}) == len(SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_atomics(schedule: Schedule) -> None:
    num_threads = 32
    total, most, least, last, by_cas = (torch.zeros(1, dtype=torch.int32) for _ in range(5))
    float_total, bits = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    olds = torch.full((num_threads,), -1, dtype=torch.int32)
    arguments = (total, float_total, bits, most, least, last, by_cas, olds)
    probes.load("threads", schedule).launch("tokenbus::atomics", (1, 1, 1), (num_threads, 1, 1), arguments)
    assert total.item() == num_threads
    assert float_total.item() == num_threads / 2
    assert bits.item() == -1
    assert most.item() == by_cas.item() == num_threads - 1
    assert least.item() == 1 - num_threads
    assert sorted(olds.tolist()) == list(range(num_threads))
    assert last.item() == olds.tolist().index(num_threads - 1)
