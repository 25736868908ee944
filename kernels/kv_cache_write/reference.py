"""KV cache write in NumPy, a token at a time."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def kv_cache_write(
    key: Array, value: Array, key_cache: Array, value_cache: Array, slot_mapping: NDArray[np.int64]
) -> None:
    """key, value: [T, K, D]; caches: [N, B, K, D], written in place; slot_mapping: int64 [T], -1 skips the token."""
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            key_cache[slot // block_size, slot % block_size] = key[token]
            value_cache[slot // block_size, slot % block_size] = value[token]
