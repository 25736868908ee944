"""What each KV block of this worker really holds, by content and not by what a plan says."""

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.interface import Swaps
from shared.block_hash import HASH_BYTES, root_hash


class BlockLedger:
    """For each full block: its chained hash, its parent's hash, and the prefix CRC at its last token; the same for each
    slot of the swap space.

    A block is unknown while it is empty, partly filled or about to be written again.
    """

    def __init__(self, num_blocks: int, num_slots: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_slots = num_slots
        count = num_blocks + num_slots  # slots follow the blocks
        self._known = np.zeros(count, dtype=np.bool_)
        self._crcs = np.zeros(count, dtype=np.uint32)
        self._hashes = np.zeros((count, HASH_BYTES), dtype=np.uint8)
        self._parents = np.zeros((count, HASH_BYTES), dtype=np.uint8)

    def record(
        self,
        blocks: NDArray[np.int32],
        parents: NDArray[np.uint8],
        hashes: NDArray[np.uint8],
        crcs: NDArray[np.uint32],
    ) -> None:
        """These N blocks are full now, and their KV is written. parents, hashes: uint8 [N, HASH_BYTES]."""
        self._parents[blocks] = parents
        self._hashes[blocks] = hashes
        self._crcs[blocks] = crcs
        self._known[blocks] = True

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """These blocks are about to be written, or hold what nobody may use."""
        self._known[blocks] = False

    def swap(self, swaps: Swaps) -> None:
        """Blocks move out and back, and what they hold with them."""
        self._copy(swaps.out[:, 0], self.num_blocks + swaps.out[:, 1])
        self._copy(self.num_blocks + swaps.back[:, 0], swaps.back[:, 1])

    def _copy(self, sources: NDArray[np.int32], destinations: NDArray[np.int32]) -> None:
        for column in (self._known, self._crcs, self._hashes, self._parents):
            column[destinations] = column[sources]

    def forget_slots(self) -> None:
        """Whoever knew what lies in the swap space is gone."""
        self._known[self.num_blocks :] = False

    def hash_of(self, block: int) -> bytes | None:
        """Chained hash of a full block, None while it is unknown."""
        return self._hashes[block].tobytes() if self._known[block] else None

    def chain_end(self, blocks: NDArray[np.int32], cache_key: str) -> tuple[bytes, int] | None:
        """Hash and prefix CRC at the end of a chain of blocks, as a sequence continues from them.

        None unless every block is known, the first is a root under this cache key, and each continues the one before.
        """
        root = root_hash(cache_key)
        if not len(blocks):
            return root, 0
        if not self._known[blocks].all():
            return None
        expected = root + self._hashes[blocks[:-1]].tobytes()
        if self._parents[blocks].tobytes() != expected:
            return None
        return self._hashes[blocks[-1]].tobytes(), int(self._crcs[blocks[-1]])

    def report(self) -> tuple[bytes, bytes]:
        """Columns of a CacheReport: block ids (int32) and hashes (16 bytes each) of all known blocks."""
        blocks = np.flatnonzero(self._known[: self.num_blocks]).astype(np.int32)
        return blocks.tobytes(), self._hashes[blocks].tobytes()
