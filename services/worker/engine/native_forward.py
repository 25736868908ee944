"""A step in C++: one call computes all layers and the likeliest tokens; only rows that want more get their logits."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.decoder.model import NativeModel
from kernels.decoder.structs import StepStruct
from kernels.sampling.native import declare, sample_native
from kernels.sampling.native_rows import RowBatches
from kernels.sampling.rows import NOT_FINITE
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.engine.reports import to_messages

_NO_SLOT = -1


class NativeForward:
    """See Forward. Called from one thread at a time; the GIL is free while a step is computed."""

    def __init__(self, model: NativeModel) -> None:
        self.kernels: str = model.level
        self.kv_cache = model.kv_cache
        self._model = model
        declare(model.functions)
        self._batches = RowBatches(model.vocab_size)
        self._logits = torch.empty((model.max_num_seqs, model.vocab_size), dtype=torch.float32)

    def run(self, batch: StepInput) -> StepOutput:
        """See Forward."""
        rows = self._batches.of(batch.rows)
        wanting = rows.needs_logits()
        slots = np.full(len(rows), _NO_SLOT, dtype=np.int32)
        slots[wanting] = np.arange(len(wanting), dtype=np.int32)
        likeliest, token_is_finite = self._step(batch, slots)
        sampled = sample_native(self._model.team, self._model.functions, self._logits, rows, wanting, likeliest)
        output = StepOutput(sampled.tokens, to_messages(sampled.logprobs), sampled.errors)
        if not token_is_finite.all():
            sequences = np.searchsorted(batch.cu_seqlens_q, np.flatnonzero(token_is_finite == 0), side="right") - 1
            output.failed = dict.fromkeys(sequences.tolist(), NOT_FINITE)
        return output

    def compute_logits(self, batch: StepInput) -> Tensor:
        """See Forward."""
        self._step(batch, np.arange(len(batch.sampled), dtype=np.int32))
        return self._logits[: len(batch.sampled)].clone()

    def _step(self, batch: StepInput, slots: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Likeliest tokens [R], -1 where a logit is not finite, and whether a token's values are finite [T].

        slots: int32 [R], the row of self._logits that takes a row's logits, or -1.
        """
        self._model.check(
            len(batch.sampled), batch.positions, batch.slot_mapping, batch.context_lens, batch.block_tables
        )
        row_tokens = batch.cu_seqlens_q[1:][batch.sampled] - 1
        tokens = np.empty(len(row_tokens), dtype=np.int32)
        token_is_finite = np.empty(len(batch.token_ids), dtype=np.uint8)
        columns: tuple[NDArray[Any], ...] = (
            np.ascontiguousarray(batch.token_ids, dtype=np.int32),
            np.ascontiguousarray(batch.positions, dtype=np.int64),
            np.ascontiguousarray(batch.slot_mapping, dtype=np.int64),
            np.ascontiguousarray(batch.cu_seqlens_q, dtype=np.int32),
            np.ascontiguousarray(batch.context_lens, dtype=np.int32),
            np.ascontiguousarray(batch.block_tables, dtype=np.int32),
            row_tokens,
            slots,
        )
        step = StepStruct(
            len(batch.token_ids),
            len(batch.context_lens),
            len(row_tokens),
            batch.block_tables.shape[1],
            *(_address(column) for column in columns),
            self._logits.data_ptr(),
            _address(tokens),
            _address(token_is_finite),
        )
        self._model.step(step)
        return tokens, token_is_finite


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
