"""What each KV block of this worker really holds, by content and not by what a plan says."""

import numpy as np
from numpy.typing import NDArray

from shared.block_hash import HASH_BYTES, root_hash


class BlockLedger:
    """For each full block: its chained hash, its parent's hash, and the prefix CRC at its last token.

    A block is unknown while it is empty, partly filled or about to be written again.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._known = np.zeros(num_blocks, dtype=np.bool_)
        self._crcs = np.zeros(num_blocks, dtype=np.uint32)
        self._hashes = bytearray(HASH_BYTES * num_blocks)
        self._parents = bytearray(HASH_BYTES * num_blocks)

    def record(self, block: int, parent: bytes, block_hash: bytes, crc: int) -> None:
        """The block is full now, and its KV is written."""
        at = block * HASH_BYTES
        self._hashes[at : at + HASH_BYTES] = block_hash
        self._parents[at : at + HASH_BYTES] = parent
        self._crcs[block] = crc
        self._known[block] = True

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """These blocks are about to be written, or hold what nobody may use."""
        self._known[blocks] = False

    def hash_of(self, block: int) -> bytes | None:
        """Chained hash of a full block, None while it is unknown."""
        at = block * HASH_BYTES
        return bytes(self._hashes[at : at + HASH_BYTES]) if self._known[block] else None

    def chain_end(self, blocks: NDArray[np.int32], cache_key: str) -> tuple[bytes, int] | None:
        """Hash and prefix CRC at the end of a chain of blocks, as a sequence continues from them.

        None unless every block is known, the first is a root under this cache key, and each continues the one before.
        """
        if not self._known[blocks].all():
            return None
        parent = root_hash(cache_key)
        for block in blocks.tolist():
            at = block * HASH_BYTES
            if self._parents[at : at + HASH_BYTES] != parent:
                return None
            parent = bytes(self._hashes[at : at + HASH_BYTES])
        return parent, int(self._crcs[blocks[-1]]) if len(blocks) else 0

    def report(self) -> tuple[bytes, bytes]:
        """Columns of a CacheReport: block ids (int32) and hashes (16 bytes each) of all known blocks."""
        blocks = np.flatnonzero(self._known).astype(np.int32)
        hashes = np.frombuffer(self._hashes, dtype=np.uint8).reshape(self.num_blocks, HASH_BYTES)
        return blocks.tobytes(), hashes[blocks].tobytes()
