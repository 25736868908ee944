"""Lack of memory as the real libraries say it."""

import itertools

import numpy as np
import pytest
import torch

from services.worker.engine.cpu import CpuEngine
from services.worker.engine.isolation import is_out_of_memory
from services.worker.models.layers import FeedForward
from tests.engine.driver import greedy
from tests.engine.scheduled import Scheduled

TOO_MANY = 1 << 50


def test_torchs_cpu_allocator() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(TOO_MANY)
    assert is_out_of_memory(raised.value)


def test_numpy_and_python() -> None:
    with pytest.raises(MemoryError) as raised:
        np.empty(TOO_MANY)
    assert is_out_of_memory(raised.value)
    with pytest.raises(MemoryError) as raised:
        bytes(TOO_MANY)
    assert is_out_of_memory(raised.value)


def test_a_device_and_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)"))
    assert not is_out_of_memory(IndexError("index out of range"))


def test_a_real_allocation_that_fails_in_the_middle_of_a_step(
    tiny_engine: CpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has written part of its keys and values by then; computed again, nobody can tell."""
    prompts = [[5, 6, 7], [9] * 40, [11, 12]]

    def run(num_failed_steps: int) -> list[list[int]]:
        shard = Scheduled(tiny_engine)
        sequences = [shard.ask(prompt, greedy(6)) for prompt in prompts]
        shard.run()
        assert (shard.errors, shard.num_failed_steps) == ({}, num_failed_steps)
        return [list(sequence.tokens) for sequence in sequences]

    expected = run(0)
    original = FeedForward.__call__
    calls = itertools.count(1)

    def feed_forward(self: FeedForward, x: torch.Tensor) -> torch.Tensor:
        if next(calls) == 5:  # the second layer of the second step
            torch.empty(TOO_MANY)
        return original(self, x)

    monkeypatch.setattr(FeedForward, "__call__", feed_forward)
    assert run(1) == expected
