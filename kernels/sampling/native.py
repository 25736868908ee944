"""Sampling on the CPU, in C++: the rows of a step shared among the threads of the engine's team."""

import ctypes

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.native.address import address_of
from kernels.sampling.native_rows import RowBatch
from kernels.sampling.rows import Sampled, TokenLogprobs
from kernels.sampling.status import reason_of


def sample_native(
    team: int,
    library: ctypes.CDLL,
    logits: Tensor,
    batch: RowBatch,
    indices: NDArray[np.int32] | None = None,
    likeliest: NDArray[np.int32] | None = None,
) -> Sampled:
    """kernels.sampling.cpu.sample by the C++ library, as load_library gives it.

    team: the address of a tokenbus::Team. logits: float32 [at least N, vocabulary], contiguous, overwritten. indices:
    int32 [N], the rows of the batch that the first N rows of logits belong to (batch.needs_logits()), by default all.
    likeliest: int32 [rows], the tokens of all other rows, -1 where the logits were not finite.
    """
    if indices is None:
        indices = np.arange(len(batch), dtype=np.int32)
    if len(logits) < len(indices) or logits.shape[1] != batch.vocab_size or not logits.is_contiguous():
        raise ValueError(f"logits {tuple(logits.shape)} for {len(indices)} rows of {batch.vocab_size}")
    if likeliest is not None and len(indices) < len(batch):
        batch.tokens[:] = likeliest
        batch.statuses[:] = likeliest < 0  # RowStatus.NOT_FINITE is 1
    if len(indices):
        library.tokenbus_sample(
            team,
            logits.data_ptr(),
            batch.vocab_size,
            batch.parameters_address,
            batch.results_address,
            address_of(indices),
            len(indices),
        )
    return _collect(batch)


def _collect(batch: RowBatch) -> Sampled:
    logprobs: list[TokenLogprobs | None] = [None] * len(batch)
    sampled = Sampled(tokens=batch.tokens.copy(), logprobs=logprobs)
    if batch.statuses.any():
        for index in np.flatnonzero(batch.statuses).tolist():
            status, stranger = int(batch.statuses[index]), int(batch.results["stranger"][index])
            sampled.errors[index] = reason_of(status, stranger, batch.vocab_size)
    for index in batch.has_logprobs:
        if index not in sampled.errors:
            logprobs[index] = _report(batch, index)
    return sampled


def _report(batch: RowBatch, index: int) -> TokenLogprobs:
    result, top = batch.results[index], batch.top_slices[index]
    return TokenLogprobs(
        logprob=float(result["logprob"]),
        rank=int(result["rank"]),
        top_ids=tuple(batch.top_ids[top].tolist()),
        top_logprobs=tuple(batch.top_logprobs[top].tolist()),
    )
