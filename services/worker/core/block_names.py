"""Names (shared.block_hash) and prefix CRCs of many full blocks at once.

SHA-256 has no vector form here, so there is one call a block; all that surrounds it is done on columns.
"""

from hashlib import sha256
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shared.block_hash import HASH_BYTES


def name_blocks(parents: NDArray[np.uint8], token_ids: NDArray[np.int32]) -> NDArray[np.uint8]:
    """uint8 [N, HASH_BYTES]: names of N blocks of different sequences; parents: uint8 [N, HASH_BYTES], of the blocks
    before them; token_ids: int32 [N, block_size]."""
    named = np.concatenate((parents, token_ids.view(np.uint8)), axis=1)
    data, width = named.tobytes(), named.shape[1]
    digests = [sha256(data[at : at + width]).digest()[:HASH_BYTES] for at in range(0, len(data), width)]
    return _as_column(digests)


def name_chain(parent: bytes, token_ids: NDArray[np.int32]) -> NDArray[np.uint8]:
    """uint8 [N, HASH_BYTES]: names of N consecutive blocks of one sequence; token_ids: int32 [N, block_size]."""
    data, width = token_ids.tobytes(), 4 * token_ids.shape[1]
    names: list[bytes] = []
    for at in range(0, len(data), width):
        parent = sha256(parent + data[at : at + width]).digest()[:HASH_BYTES]
        names.append(parent)
    return _as_column(names)


def crc_chain(prefix_hash: int, token_ids: bytes, num_first: int, block_size: int) -> tuple[NDArray[np.uint32], int]:
    """The prefix hash goes on over one sequence's ids (int32 bytes): uint32, its value at the end of each block that
    gets full, and its value at the end of all. num_first: tokens until the first of these blocks is full."""
    ends = range(4 * num_first, len(token_ids) + 1, 4 * block_size)
    crcs, begin = np.empty(len(ends), dtype=np.uint32), 0
    for index, end in enumerate(ends):
        prefix_hash = crc32(token_ids[begin:end], prefix_hash)
        crcs[index] = prefix_hash
        begin = end
    return crcs, crc32(token_ids[begin:], prefix_hash)


def _as_column(names: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, HASH_BYTES)
