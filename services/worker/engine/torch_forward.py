"""A step in torch: for float32, and for whatever the C++ kernels do not know."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paged_attention.plan import plan_attention
from kernels.sampling.cpu import sample
from kernels.sampling.rows import NOT_FINITE
from services.worker.engine.interface import StepInput, StepOutput
from services.worker.engine.reports import to_messages
from services.worker.models.decoder import Decoder
from services.worker.models.layers import StepContext
from shared.repository.config import ModelConfig


class TorchForward:
    """See Forward. kv_cache: [layers, 2, num_blocks, block_size, K, D]."""

    kernels = "torch"

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        cos_sin: Tensor,
        dtype: torch.dtype,
        num_blocks: int,
        block_size: int,
    ) -> None:
        """cos_sin: float32 [positions, D]."""
        self.decoder = decoder
        self._cos_sin = cos_sin
        self._dtype = dtype
        self._block_size = block_size
        per_token = (config.num_key_value_heads, config.head_dim)
        self.kv_cache = torch.empty((config.num_hidden_layers, 2, num_blocks, block_size, *per_token), dtype=dtype)

    @torch.inference_mode()
    def run(self, batch: StepInput) -> StepOutput:
        """See Forward."""
        logits, residual = self._compute(batch)
        sampled = sample(logits, batch.rows, batch.output_positions)
        output = StepOutput(sampled.tokens, to_messages(sampled.logprobs), sampled.errors)
        if len(batch.token_ids) > len(batch.sampled):  # else every token has a row of logits, which tells
            output.failed = _not_finite(residual, batch.cu_seqlens_q)
        return output

    def compute_logits(self, batch: StepInput) -> Tensor:
        """See Forward."""
        return self._compute(batch)[0]

    def _compute(self, batch: StepInput) -> tuple[Tensor, Tensor]:
        """Logits of the rows and residual of all tokens; see Decoder."""
        plans = {
            window: plan_attention(
                batch.cu_seqlens_q, batch.context_lens, batch.block_tables, self._block_size, self._dtype, window
            )
            for window in self.decoder.windows()
        }
        context = StepContext(
            cos_sin=self._cos_sin[torch.from_numpy(batch.positions)],
            slot_mapping=torch.from_numpy(batch.slot_mapping),
            plans=plans,
        )
        last_tokens = batch.cu_seqlens_q[1:].astype(np.int64) - 1
        return self.decoder(
            torch.from_numpy(batch.token_ids.astype(np.int64)),
            context,
            self.kv_cache,
            torch.from_numpy(last_tokens[batch.sampled]),
        )


def _not_finite(residual: Tensor, cu_seqlens_q: NDArray[np.int32]) -> dict[int, str]:
    """Sequences with a token whose values are not finite; residual: float32 [T, hidden size]."""
    tokens = torch.isfinite(residual.sum(dim=1)).logical_not().nonzero().squeeze(1).numpy()
    sequences = np.searchsorted(cu_seqlens_q, tokens, side="right") - 1
    return dict.fromkeys(sequences.tolist(), NOT_FINITE)
