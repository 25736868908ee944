"""Which tensors of a GGUF file are parameters of a model, and what their rows need."""

from collections.abc import Iterator

import numpy as np

from shared.repository.config import ModelConfig
from shared.repository.gguf_config import (
    PERMUTING_ARCHITECTURES,
    gguf_architecture,
    huggingface_name,
    undo_permutation,
)
from shared.repository.gguf_file import GgufFile, GgufTensor
from shared.repository.weight_check import is_ignored


def iter_gguf_parameters(gguf: GgufFile, config: ModelConfig) -> Iterator[tuple[str, GgufTensor, int | None]]:
    """Each parameter once: (Hugging Face name, tensor, what in_huggingface_order has to know of its rows)."""
    permuted = gguf_architecture(gguf) in PERMUTING_ARCHITECTURES
    for tensor in gguf.tensors.values():
        name = huggingface_name(tensor.name)
        if name is not None and not is_ignored(name, config):
            yield name, tensor, _heads_to_reorder(name, config) if permuted else None


def in_huggingface_order(rows: np.ndarray, num_heads: int | None) -> np.ndarray:
    """Rows of a tensor, of whatever they consist. num_heads: None when they are in that order already."""
    return rows if num_heads is None else undo_permutation(rows, num_heads)


def _heads_to_reorder(name: str, config: ModelConfig) -> int | None:
    """How many heads the rows of a query or key projection make up; None for other parameters."""
    if ".self_attn.q_proj." in name:
        return config.num_attention_heads
    if ".self_attn.k_proj." in name:
        return config.num_key_value_heads
    return None
