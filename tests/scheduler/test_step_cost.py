"""What a step costs is a matter of calls: so many per sequence, however many sequences and tokens there are.

The times are measured by bench.scheduler_step; a test that held them would depend on its machine.
"""

import gc
import sys
from collections.abc import Callable

import pytest

from bench.scheduler_step import BLOCK_SIZE, WORKER, DecodingShard

MAX_CALLS_PER_SEQUENCE = 20  # those of C functions among them; 15 to 18 when this was written


def num_calls(work: Callable[[], object]) -> int:
    """Calls of Python and C functions. The garbage collector calls whoever listens to it, as hypothesis does."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count


def calls_per_sequence(num_sequences: int, num_begun: int = 32) -> float:
    """Of schedule() and update(), as a mean over as many steps as fill a block."""
    shard = DecodingShard(num_sequences, num_begun, num_begun + 100)
    for _ in range(4):
        shard.step()
    total = 0
    for _ in range(BLOCK_SIZE):
        frame = shard.next_frame()
        shard.fold_frame(frame)
        total += num_calls(shard.update) + num_calls(lambda: shard.core.schedule(WORKER))
    assert shard.core.num_running == num_sequences and shard.core.num_preemptions == 0
    return total / BLOCK_SIZE / num_sequences


@pytest.mark.parametrize("num_sequences", [16, 256, 1024])
def test_a_step_costs_so_many_calls_per_sequence_and_no_more(num_sequences: int) -> None:
    few = calls_per_sequence(64)
    many = calls_per_sequence(num_sequences)
    assert many <= MAX_CALLS_PER_SEQUENCE
    fixed = 60 / num_sequences  # calls per step
    assert many <= few + fixed


def test_long_sequences_cost_no_more_than_short_ones() -> None:
    assert calls_per_sequence(16, 4000) <= calls_per_sequence(16, 32)
