"""The calibration text on its way through a model's layers, one sequence at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from kernels.paged_attention.plan import plan_attention
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from services.worker.models.layers import DecoderLayer, Linear, StepContext
from services.worker.quantize.layer_parts import projection, with_projection
from shared.repository.config import ModelConfig
from shared.repository.errors import ModelError

_BLOCK_SIZE = 16
_FEWEST_TOKENS = 32
SEQUENCE_TOKENS = 512
MAX_SEQUENCES = 128


@dataclass(frozen=True, slots=True)
class Watched(Linear):
    """A projection that shows its inputs."""

    see: Callable[[Tensor], None] = lambda x: None

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        self.see(x)
        return Linear(self.weight, self.bias)(x)


def split_text(tokenizer: Tokenizer, text: str, max_tokens: int) -> list[list[int]]:
    """Token ids of a text in sequences of some hundred tokens, so many as fit. max_tokens: that the model knows.

    Raises ModelError for a text that says too little.
    """
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if len(ids) < _FEWEST_TOKENS:
        raise ModelError(f"the calibration text has {len(ids)} tokens; at least {_FEWEST_TOKENS} are needed")
    length = min(SEQUENCE_TOKENS, max_tokens, len(ids))
    starts = range(0, len(ids) - length + 1, length)
    return [ids[start : start + length] for start in starts][:MAX_SEQUENCES]


class LayerRunner:
    """Runs layers on sequences of num_tokens tokens; all in float32."""

    def __init__(self, config: ModelConfig, windows: set[int | None], num_tokens: int) -> None:
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        num_blocks = -(-num_tokens // _BLOCK_SIZE)
        lengths = np.array([num_tokens], dtype=np.int32)
        tables = np.arange(num_blocks, dtype=np.int32)[None]
        starts = np.array([0, num_tokens], dtype=np.int32)
        self._step = StepContext(
            cos_sin=torch.from_numpy(cos_sin_table(frequencies, num_tokens)),
            slot_mapping=torch.arange(num_tokens),
            plans={
                window: plan_attention(starts, lengths, tables, _BLOCK_SIZE, torch.float32, window)
                for window in windows
            },
        )
        shape = (2, num_blocks, _BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
        self._keys, self._values = torch.zeros(shape)

    def run(self, layer: DecoderLayer, residual: Tensor) -> Tensor:
        """residual: float32 [num_tokens, hidden size], before the layer; returns that after it."""
        attended = layer.attention(layer.attention_norm(residual), self._step, self._keys, self._values)
        between = residual + attended
        return between + layer.feed_forward(layer.feed_forward_norm(between))

    def watch(
        self, layer: DecoderLayer, residuals: Sequence[Tensor], sees: Mapping[str, Callable[[Tensor], None]]
    ) -> None:
        """Runs the layer on all sequences and shows what its projections get. sees: by projection."""
        for name, see in sees.items():
            linear = projection(layer, name)
            layer = with_projection(layer, name, Watched(linear.weight, linear.bias, linear.names, see))
        for residual in residuals:
            self.run(layer, residual)
