"""What a device copies from the host while the host goes on: nothing of it is written again too early."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits as SamplingLimits
from services.worker.engine.cuda_buffers import HeadCounts, StepBuffers
from services.worker.engine.interface import RowSampling, StepInput
from services.worker.engine.warm_up import warm_up_step
from shared.messages.sampling import Sampling as Request
from tests.engine.test_cuda_forward import BLOCK_SIZE, LIMITS
from tests.kernels.emulator.module import load_emulated

DEVICE = torch.device("cpu")


class Copies:
    """Sources of copies that a device would do later, and what they held when it was told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._copy: Callable[..., torch.Tensor] = torch.Tensor.copy_
        monkeypatch.setattr(torch.Tensor, "copy_", lambda *args, **options: self._note(*args, **options))

    def _note(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if non_blocking:
            self._begun.append((source, source.clone()))
        return self._copy(to, source)

    def take(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Those since the last call."""
        begun, self._begun = self._begun, []
        return begun


def is_as_it_was(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return all(torch.equal(source, before) for source, before in copies)


def step_of(num_sequences: int, offset: int) -> StepInput:
    """One token each, every column another one than with another offset."""
    batch = warm_up_step(np.ones(num_sequences, dtype=np.int32), BLOCK_SIZE)
    batch.token_ids[:] = offset
    batch.positions[:] = offset
    batch.slot_mapping[:] = offset
    batch.context_lens[:] = offset + 1
    batch.block_tables = np.full((num_sequences, 2 + offset % 2), offset, dtype=np.int32)
    batch.carried = np.full(num_sequences, offset % num_sequences, dtype=np.int32)
    return batch


def test_columns_of_a_step_stay_while_the_next_one_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = StepBuffers(HeadCounts(4, 2, frozenset({None})), LIMITS, 16, DEVICE)
    tokens = torch.zeros(LIMITS.max_num_seqs, dtype=torch.int32)
    copies = Copies(monkeypatch)
    buffers.load(step_of(3, 5), None, tokens)
    first = copies.take()
    buffers.load(step_of(3, 6), 4, tokens)
    assert len(first) > 8 and is_as_it_was(first)
    second = copies.take()
    buffers.load(step_of(3, 7), None, tokens)
    assert is_as_it_was(second)
    assert not is_as_it_was(first), "there are two sets, or this test sees nothing"


def test_columns_are_copied_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gathers what lies in pieces in memory that is not pinned, and a copy from there may wait until all is done
    that the device was told before: then the host would wait for the running step."""
    buffers = StepBuffers(HeadCounts(4, 2, frozenset({None})), LIMITS, 16, DEVICE)
    copies = Copies(monkeypatch)
    columns = buffers.load(step_of(3, 5))
    assert all(source.is_contiguous() for source, _ in copies.take())
    assert columns.block_tables.shape == (LIMITS.max_num_seqs, 16)
    assert columns.block_tables[:3, :3].eq(5).all()
    assert columns.block_tables.count_nonzero() == 9


def test_rows_of_a_step_stay_while_those_of_its_twin_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Sampling(load_emulated(), torch.float32, SamplingLimits(384, 4, 64, 64))
    second = first.twin()
    copies = Copies(monkeypatch)
    taken = []
    for place, sample in enumerate((first, second)):
        request = Request(max_tokens=8, seed=place, logit_bias={place + 3: 1.0}, bad_token_ids=(place,), top_p=0.5)
        sample.stage([RowSampling(request, 1)] * 2, np.array([place, place], dtype=np.int32))
        taken.append(copies.take())
    assert len(taken[0]) == 4 and is_as_it_was(taken[0])
    assert not all(torch.equal(one, other) for (one, _), (other, _) in zip(*taken, strict=True))
