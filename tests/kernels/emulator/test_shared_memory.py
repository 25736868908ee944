"""Shared memory in the emulator: poisoned anew for each block, and no larger than was asked for."""

import numpy as np
import pytest
import torch

from tests.kernels.emulator import probes
from tests.kernels.emulator.module import SCHEDULES, EmulationError, Schedule


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_each_block_finds_poison(schedule: Schedule) -> None:
    seen = torch.zeros((5, 2, 64), dtype=torch.uint8)
    module = probes.load("shared_memory", schedule)
    module.launch("tokenbus::as_found", (5, 1, 1), (64, 1, 1), (seen, np.int32(64)), shared_bytes=64)
    assert torch.all(seen == schedule.poison)


@pytest.mark.parametrize("shared_bytes", [1, 64, 1000, 1024, 48 << 10, 100 << 10])
def test_a_byte_past_the_end_is_found(shared_bytes: int) -> None:
    module = probes.load("shared_memory")
    for place in (shared_bytes - 1, 0):
        module.launch("tokenbus::write_at", (1, 1, 1), (1, 1, 1), (np.int32(place),), shared_bytes)
    for past in (0, 1, 100, 1000):
        with pytest.raises(
            EmulationError, match=f"written {past} bytes past the {shared_bytes} of dynamic shared memory"
        ):
            module.launch("tokenbus::write_at", (1, 1, 1), (1, 1, 1), (np.int32(shared_bytes + past),), shared_bytes)


def test_dynamic_memory_that_nobody_asked_for_is_found() -> None:
    with pytest.raises(EmulationError, match="written 0 bytes past the 0 of"):
        probes.load("shared_memory").launch("tokenbus::write_at", (1, 1, 1), (1, 1, 1), (np.int32(0),))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_variables_of_two_functions_are_two(schedule: Schedule) -> None:
    sums = torch.zeros(32, dtype=torch.int32)
    probes.load("shared_memory", schedule).launch("tokenbus::two_variables", (1, 1, 1), (32, 1, 1), (sums,))
    assert sums.tolist() == [101 * (31 - lane) for lane in range(32)]
