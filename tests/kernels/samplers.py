"""The samplers behind one face: torch, C++ at every level of instructions that there is, and CUDA in the emulator."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.native.library import load_library
from kernels.sampling import cpu, native
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits
from kernels.sampling.native_rows import RowBatches
from kernels.sampling.rows import Sampled
from tests.kernels.emulator.module import SCHEDULES, Schedule, load_emulated
from tests.kernels.sampling_rows import SampledRow, positions_of


class Sample(Protocol):
    """Samples a copy of float32 logits: [vocabulary], the same for all rows, or [rows, vocabulary]."""

    def __call__(self, logits: NDArray[np.float32], *rows: SampledRow) -> Sampled: ...


class Native:
    """The C++ library of a level with a team of threads. Raises BuildError."""

    def __init__(self, level: str, num_threads: int = 2) -> None:
        self.library = load_library(level).functions
        self.team = self.library.tokenbus_team_new(num_threads)

    def close(self) -> None:
        """Ends the threads."""
        self.library.tokenbus_team_delete(self.team)

    def __call__(self, logits: NDArray[np.float32], *rows: SampledRow) -> Sampled:
        copy = batch_of(logits, len(rows))
        batch = RowBatches(copy.shape[1]).of(rows, positions_of(rows))
        return native.sample_native(self.team, self.library, copy, batch)


def sample_by_torch(logits: NDArray[np.float32], *rows: SampledRow) -> Sampled:
    """kernels.sampling.cpu."""
    return cpu.sample(batch_of(logits, len(rows)), rows, positions_of(rows))


class EmulatedSampler:
    """The CUDA sampler in the emulator. Logits are rounded to the dtype."""

    def __init__(self, dtype: torch.dtype = torch.float32, schedule: Schedule = SCHEDULES[0]) -> None:
        self._dtype = dtype
        self._schedule = schedule

    def __call__(self, logits: NDArray[np.float32], *rows: SampledRow) -> Sampled:
        batch = batch_of(logits, len(rows)).to(self._dtype)
        sampling = new_sampling(batch.shape[1], max(len(rows), 1), self._dtype, self._schedule)
        return sampling(batch, rows, positions_of(rows))


def new_sampling(
    vocab_size: int, max_rows: int, dtype: torch.dtype = torch.float32, schedule: Schedule = SCHEDULES[0]
) -> Sampling:
    """With room for some hundred log-probabilities, biases and tokens of history a row; its buffers hold no numbers."""
    limits = Limits(vocab_size, max_rows, max_history_tokens=100 * max_rows, max_biases=100 * max_rows, max_top=450)
    return Sampling(load_emulated(schedule), dtype, limits)


@contextmanager
def sampler(name: str) -> Iterator[Sample]:
    """The sampler called "torch", that of CUDA in the emulator, called "emulated", or that of a level."""
    if name in ("torch", "emulated"):
        yield sample_by_torch if name == "torch" else EmulatedSampler()
        return
    one = Native(name)
    try:
        yield one
    finally:
        one.close()


def batch_of(logits: NDArray[np.float32], num_rows: int) -> torch.Tensor:
    """A copy: float32 [rows, vocabulary]."""
    return torch.from_numpy(np.tile(logits, (num_rows, 1)) if logits.ndim == 1 else logits.copy())
