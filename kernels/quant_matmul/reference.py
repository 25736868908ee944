"""Products with quantised weights in NumPy: what the weights mean, then a plain product, in float64."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]


def int4_weights(codes: Codes, scales: Floats, zeros: Codes, group_of: NDArray[np.int64]) -> Floats:
    """codes: [n, k]; scales, zeros: [n, groups]; group_of: [k]. Returns float64 [n, k]."""
    steps = codes.astype(np.float64) - zeros.astype(np.float64)[:, group_of]
    return np.asarray(steps * scales[:, group_of])


def scaled_weights(values: Floats, scales: Floats) -> Floats:
    """values: [n, k]; scales: [n]. Returns float64 [n, k]."""
    return np.asarray(values * scales[:, None])


def quant_matmul(x: Floats, weights: Floats, bias: Floats | None = None) -> Floats:
    """x: [rows, k], weights: [n, k], bias: [n]. Returns float64 [rows, n]."""
    product = x @ weights.T
    return np.asarray(product if bias is None else product + bias)
