"""RMSNorm in float32 NumPy."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x: float32 [..., n], weight: float32 [n]. Returns float32 [..., n]."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: Array = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return normed


def add_rms_norm(x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """Returns (rms_norm(x + residual), x + residual), both float32 of x's shape."""
    total = x + residual
    return rms_norm(total, weight, eps), total
