"""Blocks of the KV cache from place to place, in NumPy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def copy_blocks(cache: Array, sources: Sequence[int], destinations: Sequence[int]) -> None:
    """cache: [P, N, ...]; in every plane block sources[i] into block destinations[i], in place.

    Raises ValueError if a block is written twice, or read and written: the pairs have no order.
    """
    if len(set(destinations)) < len(destinations) or set(sources) & set(destinations):
        raise ValueError("a block is written twice, or read and written")
    for source, destination in zip(sources, destinations, strict=True):
        cache[:, destination] = cache[:, source]


def gather_blocks(cache: Array, blocks: Sequence[int]) -> Array:
    """cache: [P, N, ...]. Returns [len(blocks), P, ...]."""
    return np.stack([cache[:, block] for block in blocks])


def scatter_blocks(cache: Array, kept: Array, blocks: Sequence[int]) -> None:
    """kept: [len(blocks), P, ...], into those blocks of cache, [P, N, ...], in place."""
    for index, block in enumerate(blocks):
        cache[:, block] = kept[index]
