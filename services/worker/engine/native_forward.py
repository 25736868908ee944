"""A step in C++: one call computes all layers and the likeliest tokens; only rows that want more get their logits."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.decoder.model import NativeModel
from kernels.decoder.structs import StepStruct
from kernels.sampling.cpu import sample
from kernels.sampling.rows import NOT_FINITE, blocked_ids, has_penalties, is_greedy
from services.worker.engine.interface import RowSampling, StepInput, StepOutput
from services.worker.engine.reports import to_messages

_NO_SLOT = -1


class NativeForward:
    """See Forward. Called from one thread at a time; the GIL is free while a step is computed."""

    def __init__(self, model: NativeModel) -> None:
        self.kernels: str = model.level
        self.kv_cache = model.kv_cache
        self._model = model
        self._rows: list[RowSampling] = []
        self._wanting = np.empty(0, dtype=np.int64)
        self._slots = np.empty(0, dtype=np.int32)
        self._logits = torch.empty((model.max_num_seqs, model.vocab_size), dtype=torch.float32)

    def run(self, batch: StepInput) -> StepOutput:
        """See Forward."""
        if batch.rows is not self._rows:
            self._look_at(batch.rows)
        tokens, row_is_finite, token_is_finite = self._step(batch, self._slots)
        output = StepOutput(tokens)
        if len(self._wanting):
            self._sample(batch, output)
        if not row_is_finite.all():
            output.errors |= dict.fromkeys(np.flatnonzero(row_is_finite == 0).tolist(), NOT_FINITE)
        if not token_is_finite.all():
            sequences = np.searchsorted(batch.cu_seqlens_q, np.flatnonzero(token_is_finite == 0), side="right") - 1
            output.failed = dict.fromkeys(sequences.tolist(), NOT_FINITE)
        return output

    def compute_logits(self, batch: StepInput) -> Tensor:
        """See Forward."""
        self._step(batch, np.arange(len(batch.sampled), dtype=np.int32))
        return self._logits[: len(batch.sampled)].clone()

    def _look_at(self, rows: list[RowSampling]) -> None:
        """Which rows want their logits; the same list of rows comes again and again while they decode."""
        self._rows = rows
        self._wanting = np.array([index for index, row in enumerate(rows) if _wants_logits(row)], dtype=np.int64)
        self._slots = np.full(len(rows), _NO_SLOT, dtype=np.int32)
        self._slots[self._wanting] = np.arange(len(self._wanting))

    def _sample(self, batch: StepInput, output: StepOutput) -> None:
        wanting = self._wanting.tolist()
        sampled = sample(self._logits[: len(wanting)], [batch.rows[row] for row in wanting])
        output.tokens[self._wanting] = sampled.tokens
        output.errors = {wanting[index]: reason for index, reason in sampled.errors.items()}
        if any(sampled.logprobs):
            output.logprobs = [None] * len(batch.rows)
            for row, report in zip(wanting, to_messages(sampled.logprobs), strict=True):
                output.logprobs[row] = report

    def _step(
        self, batch: StepInput, slots: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint8]]:
        """Likeliest tokens [R], whether a row's logits are finite [R], whether a token's values are [T]."""
        self._model.check(
            len(batch.sampled), batch.positions, batch.slot_mapping, batch.context_lens, batch.block_tables
        )
        row_tokens = batch.cu_seqlens_q[1:][batch.sampled] - 1
        tokens = np.empty(len(row_tokens), dtype=np.int32)
        row_is_finite = np.empty(len(row_tokens), dtype=np.uint8)
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
            _address(row_is_finite),
            _address(token_is_finite),
        )
        self._model.step(step)
        return tokens, row_is_finite, token_is_finite


def _wants_logits(row: RowSampling) -> bool:
    """Whether the likeliest token of the untouched logits is not all that the row wants."""
    sampling = row.sampling
    return bool(
        not is_greedy(sampling)
        or sampling.logprobs is not None
        or sampling.allowed_token_ids
        or sampling.logit_bias
        or has_penalties(sampling)
        or blocked_ids(row)
    )


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
