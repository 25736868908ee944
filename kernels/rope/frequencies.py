"""Rotation frequencies of rotary position embedding, and their table of cosines and sines."""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Llama3Scaling(Protocol):
    """Parameters of Llama 3.1's context stretching; lengths in tokens."""

    @property
    def factor(self) -> float:
        """How many times slower the slow pairs turn."""

    @property
    def low_freq_factor(self) -> float:
        """Pairs with fewer turns than this over the original context are slowed by factor."""

    @property
    def high_freq_factor(self) -> float:
        """Pairs with more turns than this over the original context stay as they are."""

    @property
    def original_max_position_embeddings(self) -> int:
        """The original context."""


def inverse_frequencies(head_dim: int, theta: float, scaling: Llama3Scaling | None = None) -> NDArray[np.float64]:
    """Radians per position of each pair of a head: float64 [head_dim / 2], theta^(-2i / head_dim) if not scaled."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return np.asarray(kept * frequencies + (1.0 - kept) * frequencies / scaling.factor)


def cos_sin_table(frequencies: NDArray[np.float64], num_positions: int) -> NDArray[np.float32]:
    """float32 [num_positions, head_dim]: the cosines of a position's angles, then their sines."""
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * frequencies[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
