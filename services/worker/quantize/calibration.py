"""The calibration text on its way through a model's layers, one sequence at a time."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from kernels.paged_attention.plan import plan_attention
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.silu_and_mul.cpu import silu_and_mul
from services.worker.models.layer_parts import PROJECTIONS
from services.worker.models.layers import Attention, DecoderLayer, Linear, StepContext
from shared.repository.config import ModelConfig
from shared.repository.errors import ModelError

_BLOCK_SIZE = 16
_FEWEST_TOKENS = 32
_CHARACTERS_A_TOKEN = 5  # or so: a text with more is encoded once more
_OF_A_WORD = 32  # tokens at the end of a part of a text, which the whole text may have otherwise
SEQUENCE_TOKENS = 512
MAX_SEQUENCES = 128


def split_text(tokenizer: Tokenizer, text: str, max_tokens: int) -> list[list[int]]:
    """Token ids of a text in sequences of some hundred tokens, so many as fit. max_tokens: that the model knows.

    No more of the text is encoded than that needs. Raises ModelError for a text that says too little.
    """
    ids = _first_ids(tokenizer, text, MAX_SEQUENCES * min(SEQUENCE_TOKENS, max_tokens))
    if len(ids) < _FEWEST_TOKENS:
        raise ModelError(f"the calibration text has {len(ids)} tokens; at least {_FEWEST_TOKENS} are needed")
    length = min(SEQUENCE_TOKENS, max_tokens, len(ids))
    starts = range(0, len(ids) - length + 1, length)
    return [ids[start : start + length] for start in starts][:MAX_SEQUENCES]


def _first_ids(tokenizer: Tokenizer, text: str, count: int) -> list[int]:
    """At least so many, or all of the text's. A token takes some hundred bytes while it is encoded."""
    num_characters = _CHARACTERS_A_TOKEN * count
    while True:
        ids: list[int] = tokenizer.encode(text[:num_characters], add_special_tokens=False).ids
        if len(ids) >= count + _OF_A_WORD or num_characters >= len(text):
            return ids
        num_characters *= 2


def embedded(embedding: Tensor, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """The residuals before the first layer, float32 [tokens, hidden size] of each sequence."""
    return [embedding[torch.tensor(ids)].float() for ids in sequences]


class Heads:
    """Attention over sequences of num_tokens tokens, up to the projection back; all in float32."""

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

    def __call__(self, attention: Attention, normed: Tensor) -> Tensor:
        """normed: [num_tokens, hidden size]. Returns [num_tokens, H * D]."""
        without_output = replace(attention, output=_UNCHANGED)
        return without_output(normed, self._step, self._keys, self._values)


class _Unchanged(Linear):
    """A projection that is none."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


_UNCHANGED = _Unchanged(torch.empty(0))


class LayerPass:
    """All sequences on their way through one layer, from projection to projection: what is quantised at one of them
    counts from there on, and nothing is computed twice. The methods are called in their order, each once."""

    def __init__(self, heads: Heads, residuals: Sequence[Tensor]) -> None:
        """residuals: float32 [num_tokens, hidden size] of each sequence, before the layer."""
        self._heads = heads
        self._residuals = list(residuals)
        self._inputs: list[Tensor] = []

    def inputs(self, name: str, layer: DecoderLayer) -> list[Tensor]:
        """What a projection gets, of each sequence; asked for in the order of PROJECTIONS."""
        if name == "query_key_value":
            self._inputs = [layer.attention_norm(residual) for residual in self._residuals]
        elif name == "output":
            self._inputs = [self._heads(layer.attention, x) for x in self._inputs]
        elif name == "gate_up":
            self._add(layer.attention.output)
            self._inputs = [layer.feed_forward_norm(residual) for residual in self._residuals]
        else:
            self._inputs = [silu_and_mul(layer.feed_forward.gate_up(x)) for x in self._inputs]
        return self._inputs

    def outputs(self, layer: DecoderLayer) -> list[Tensor]:
        """The residuals after the layer."""
        self._add(layer.feed_forward.down)
        return self._residuals

    def _add(self, linear: Linear) -> None:
        pairs = zip(self._residuals, self._inputs, strict=True)
        self._residuals = [residual + linear(x) for residual, x in pairs]


def run_layer(heads: Heads, layer: DecoderLayer, residuals: Sequence[Tensor]) -> list[Tensor]:
    """The residuals after a layer as it is."""
    layer_pass = LayerPass(heads, residuals)
    for name in PROJECTIONS:
        layer_pass.inputs(name, layer)
    return layer_pass.outputs(layer)
