"""The prefix hash of many sequences at once (protocol rule 21).

shared.prefix_hash chains CRC-32 over int32 ids. CRC-32 is linear over bits, so the four bytes of one id can be looked
up as two halves: raw(x) = LOW[x & 0xffff] ^ HIGH[x >> 16], where raw is the CRC register after four bytes from the
state zero. zlib inverts the register before and after, hence the two complements below.
"""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray


def extend_all(prefix_hashes: NDArray[np.uint32], token_ids: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Each prefix hash (uint32 [S]) after one more id (int32 [S]); equals shared.prefix_hash.extend_by_one."""
    register = ~prefix_hashes ^ token_ids.view(np.uint32)
    extended: NDArray[np.uint32] = ~(_LOW[register & 0xFFFF] ^ _HIGH[register >> 16])
    return extended


def _byte_table(index: int) -> NDArray[np.uint32]:
    """uint32 [256]: raw CRC of four bytes that are zero but for byte `index`."""
    words = (int.to_bytes(value << (8 * index), 4, "little") for value in range(256))
    return np.array([crc32(word, 0xFFFFFFFF) ^ 0xFFFFFFFF for word in words], dtype=np.uint32)


def _half_table(low: NDArray[np.uint32], high: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """uint32 [65536]: raw CRC of all pairs of two neighbouring bytes."""
    return (high[:, None] ^ low[None, :]).reshape(-1)


_LOW = _half_table(_byte_table(0), _byte_table(1))
_HIGH = _half_table(_byte_table(2), _byte_table(3))
