"""A step in C++: one call computes all layers and the likeliest tokens; only rows that want more get their logits."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.decoder.model import NativeModel
from kernels.sampling.native import sample_native
from kernels.sampling.native_rows import RowBatches
from kernels.sampling.rows import NOT_FINITE
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.engine.reports import to_messages
from services.worker.engine.step_columns import StepColumns

_NO_SLOT = -1


class NativeForward:
    """See Forward. Called from one thread at a time; the GIL is free while a step is computed."""

    def __init__(self, model: NativeModel) -> None:
        self.kernels: str = model.level
        self.kv_cache = model.kv_cache
        self.model = model
        self._batches = RowBatches(model.vocab_size)
        self._logits = torch.empty((model.max_num_seqs, model.vocab_size), dtype=torch.float32)

    def run(self, batch: StepInput) -> StepOutput:
        """See Forward."""
        rows = self._batches.of(batch.rows, batch.output_positions)
        wanting = rows.needs_logits()
        slots = np.full(len(rows), _NO_SLOT, dtype=np.int32)
        slots[wanting] = np.arange(len(wanting), dtype=np.int32)
        likeliest, token_is_finite = self._step(batch, slots)
        sampled = sample_native(self.model.team, self.model.functions, self._logits, rows, wanting, likeliest)
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
        """Likeliest tokens [R], -1 where a logit is not finite, and whether a token's values are finite [T]."""
        self.model.check(
            len(batch.sampled), batch.positions, batch.slot_mapping, batch.context_lens, batch.block_tables
        )
        columns = StepColumns.of(batch, slots, self._logits)
        self.model.step(columns.struct)
        return columns.likeliest, columns.token_is_finite
