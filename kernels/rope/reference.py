"""Rotary position embedding in float32 NumPy, a token at a time."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def rope(x: Array, positions: NDArray[np.int64], cos_sin: Array) -> Array:
    """x: float32 [T, H, D], positions: int64 [T], cos_sin: float32 [P, D] of frequencies.cos_sin_table.

    Returns float32 [T, H, D]. IndexError for a position beyond the table.
    """
    half = x.shape[-1] // 2
    turned = np.empty_like(x)
    for token, position in enumerate(positions):
        cos, sin = cos_sin[position, :half], cos_sin[position, half:]
        first, second = x[token, :, :half], x[token, :, half:]
        turned[token, :, :half] = first * cos - second * sin
        turned[token, :, half:] = second * cos + first * sin
    return turned
