"""SiLU gate in float32 NumPy."""

import numpy as np
from numpy.typing import NDArray


def silu_and_mul(gate_up: NDArray[np.float32]) -> NDArray[np.float32]:
    """gate_up: float32 [T, 2n], the gate in the first half of each row. Returns float32 [T, n]."""
    gate, up = np.split(gate_up, 2, axis=-1)
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
    return (gate * sigmoid * up).astype(np.float32)
