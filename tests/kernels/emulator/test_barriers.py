"""Barriers and collectives that not all come to: the emulator says so, with who waits where."""

import numpy as np
import pytest
import torch

from tests.kernels.emulator import probes
from tests.kernels.emulator.module import SCHEDULES, EmulationError, Schedule


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    found: Schedule = request.param
    return found


def launch(schedule: Schedule, kernel: str, num_threads: int, *arguments: torch.Tensor | np.generic) -> None:
    """One block of it."""
    module = probes.load("barriers", schedule)
    module.launch(f"tokenbus::{kernel}", (1, 1, 1), (num_threads, 1, 1), arguments)


@pytest.mark.parametrize(("num_threads", "count"), [(128, 128), (128, 100), (128, 33), (40, 1), (1, 1)])
def test_a_barrier_waits_for_no_thread_that_has_ended(schedule: Schedule, num_threads: int, count: int) -> None:
    total = torch.full((1,), -1, dtype=torch.int32)
    launch(schedule, "sum_of_those_left", num_threads, total, np.int32(count))
    assert total.item() == count * (count - 1) // 2


@pytest.mark.parametrize("half", [1, 16, 31])
def test_a_deadlock_is_reported_with_who_waits(schedule: Schedule, half: int) -> None:
    waiting = f"deadlock: {half} threads at a barrier, {32 - half} at a warp's collective, 0 have ended"
    with pytest.raises(EmulationError, match=waiting):
        launch(schedule, "barrier_against_warp", 32, np.int32(half))


@pytest.mark.parametrize("count", [1, 31])
def test_lanes_that_ended_are_missed(schedule: Schedule, count: int) -> None:
    waiting = f"deadlock: 0 threads at a barrier, {32 - count} at a warp's collective, {count} have ended"
    with pytest.raises(EmulationError, match=waiting):
        launch(schedule, "lanes_that_ended", 32, np.int32(count))


def test_a_warp_that_is_not_whole_has_no_lanes_for_a_full_mask(schedule: Schedule) -> None:
    with pytest.raises(EmulationError, match="deadlock: 0 threads at a barrier, 20 at a warp's collective"):
        launch(schedule, "lanes_that_ended", 20, np.int32(0))


def test_barriers_in_two_places_are_not_one(schedule: Schedule) -> None:
    with pytest.raises(EmulationError, match=r"different barriers: \d+ at line \d+ of barriers.cu, one at line \d+"):
        launch(schedule, "two_barriers", 32, np.int32(16))
    launch(schedule, "two_barriers", 32, np.int32(0))


def test_lanes_that_disagree_are_reported(schedule: Schedule) -> None:
    with pytest.raises(EmulationError, match="lanes of one warp are at different collectives"):
        launch(schedule, "two_collectives", 32, torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("count", [31, 16])
def test_a_lane_whose_mask_the_others_do_not_share_waits_for_ever(schedule: Schedule, count: int) -> None:
    with pytest.raises(EmulationError, match="0 threads at a barrier, 1 at a warp's collective, 31 have ended"):
        launch(schedule, "two_masks", 32, torch.zeros(1, dtype=torch.int32), np.int32(count))


def test_a_lane_that_its_mask_leaves_out_is_reported(schedule: Schedule) -> None:
    with pytest.raises(EmulationError, match="a lane calls a warp's collective that its mask leaves out"):
        launch(schedule, "outside_its_mask", 32, torch.zeros(1, dtype=torch.int32), np.uint32(0xFFFFFFFE))


def test_an_error_says_in_which_block(schedule: Schedule) -> None:
    module = probes.load("barriers", schedule)
    block = r"block \(\d, \d, \d\)"
    with pytest.raises(EmulationError, match=f"tokenbus::barrier_against_warp: {block}: deadlock"):
        module.launch("tokenbus::barrier_against_warp", (2, 2, 2), (32, 1, 1), (np.int32(5),))


def test_a_kernel_runs_after_one_that_failed(schedule: Schedule) -> None:
    module, total = probes.load("barriers", schedule), torch.zeros(1, dtype=torch.int32)
    for _ in range(3):
        with pytest.raises(EmulationError):
            module.launch("tokenbus::barrier_against_warp", (1, 1, 1), (32, 1, 1), (np.int32(5),))
        module.launch("tokenbus::sum_of_those_left", (1, 1, 1), (64, 1, 1), (total, np.int32(64)))
        assert total.item() == 64 * 63 // 2


@pytest.mark.parametrize("num_threads", [32, 96])
def test_barriers_are_counted_by_thread(num_threads: int) -> None:
    module = probes.load("barriers")
    arguments = (torch.zeros(1, dtype=torch.int32), np.int32(num_threads))
    module.launch("tokenbus::sum_of_those_left", (2, 1, 1), (num_threads, 1, 1), arguments)
    assert module.counts.barriers == 2 * num_threads
