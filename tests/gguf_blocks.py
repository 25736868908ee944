"""Matrices in the encodings of GGUF files."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

_FACTORS = {"Q4_K": slice(0, 4), "Q5_K": slice(0, 4), "Q6_K": slice(208, 210)}
"""Where a block keeps its fp16 factors; all its other bytes may be anything."""


def encode(values: NDArray[np.float32], kind: GGMLQuantizationType) -> NDArray[np.generic]:
    """float32 [rows, inputs] as the gguf package encodes them; of encodings that it only reads, random blocks."""
    if kind.name in _FACTORS:
        return random_blocks(kind, *values.shape, seed=values.size)
    return np.asarray(quantize(values, kind))


def random_blocks(kind: GGMLQuantizationType, rows: int, inputs: int, seed: int) -> NDArray[np.uint8]:
    """uint8 [rows, bytes of a row]: any codes and small scales, weights of about one in all."""
    generator = np.random.default_rng(seed)
    if kind.name not in _FACTORS:
        return np.asarray(quantize(generator.standard_normal((rows, inputs), dtype=np.float32), kind))
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows, inputs // block_elements, block_bytes), dtype=np.uint8)
    field = _FACTORS[kind.name]
    factors = generator.uniform(1e-4, 2e-3, (*blocks.shape[:2], (field.stop - field.start) // 2))
    blocks[..., field] = factors.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)
