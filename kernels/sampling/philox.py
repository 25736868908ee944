"""The counter-based random numbers of sampling, for many tokens at once, in NumPy."""

import numpy as np
from numpy.typing import NDArray

_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_FACTOR_0 = np.uint64(0xD2511F53)
_FACTOR_2 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85


def words(seed: int, position: int, blocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x32-10 with key (seed's low word, seed's high word) and counters (blocks[i], position, 0, 0).

    blocks: uint64 [n] below 2^32. Returns uint64 [n, 4], each below 2^32.
    """
    key_0, key_1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    c0 = blocks
    c1 = np.full_like(blocks, position)
    c2 = np.zeros_like(blocks)
    c3 = np.zeros_like(blocks)
    for _ in range(10):
        first, second = c0 * _FACTOR_0, c2 * _FACTOR_2
        c0 = (second >> _SHIFT) ^ c1 ^ np.uint64(key_0)
        c1 = second & _WORD
        c2 = (first >> _SHIFT) ^ c3 ^ np.uint64(key_1)
        c3 = first & _WORD
        key_0, key_1 = (key_0 + _WEYL_0) & 0xFFFFFFFF, (key_1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1)


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Gumbel noise of these tokens (int64 [n], rising) at an output position: float32 [n]."""
    block_of_token = tokens.astype(np.uint64) >> np.uint64(2)
    is_first = np.ones(len(tokens), dtype=np.bool_)
    is_first[1:] = block_of_token[1:] != block_of_token[:-1]
    random = words(seed, position, block_of_token[is_first])
    chosen = random[np.cumsum(is_first) - 1, tokens & 3]
    uniform = (chosen.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
    noise: NDArray[np.float32] = -np.log(-np.log1p(-uniform))
    return noise
