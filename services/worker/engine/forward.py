"""What computes a step for the CPU engine: the C++ kernels, or torch where those cannot."""

from typing import Protocol

from torch import Tensor

from services.worker.engine.interface import StepInput, StepOutput


class Forward(Protocol):
    """A model's weights and its KV cache.

    kernels: what it computes with, for logs. kv_cache: [layers, 2, num_blocks, ...], keys then values; what lies within
    a block is the forward's own affair. Its memory is reserved at start and claimed at warm-up, what is beyond
    CLAIMED_AT_ONCE_BYTES as blocks are written.
    """

    kernels: str
    kv_cache: Tensor

    def run(self, batch: StepInput) -> StepOutput:
        """Computes all tokens, writes their keys and values, samples the rows; all of StepOutput but spoiled_blocks.

        Raises IndexError on a position, slot or block that is beyond the engine's.
        """

    def compute_logits(self, batch: StepInput) -> Tensor:
        """run without the sampling: float32 [R, vocabulary] for the rows."""
