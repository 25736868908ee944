"""A KV block as the scheduler sees it, and the list of those that nobody holds."""

from collections.abc import Iterator


class Block:
    """One block of KV memory.

    ref_count: block tables that hold it. hash: name of its contents (shared.block_hash) once it is full and all its
    tokens are folded, else None. older, newer: neighbours in the free list, None while the block is held.
    """

    __slots__ = ("hash", "id", "newer", "older", "ref_count")

    def __init__(self, number: int) -> None:
        self.id = number
        self.ref_count = 0
        self.hash: bytes | None = None
        self.older: Block | None = None
        self.newer: Block | None = None


class FreeList:
    """Blocks that no sequence holds, the one to be used next at the old end.

    The links lie in the blocks themselves. A deque would pop and push as fast, but a prefix-cache hit takes a block
    out of the middle: here that is O(1), in a deque it is a search over every free block. Nothing is allocated per
    operation either, since the list never creates a node.

        (ends) <-> oldest <-> ... <-> newest <-> (ends)       one sentinel closes the ring

    Blocks with a hash are pushed at the new end, so the least recently used contents are overwritten first. Blocks
    without one are pushed at the old end: they hold nothing worth keeping.
    """

    __slots__ = ("_ends", "_length")

    def __init__(self) -> None:
        self._ends = Block(-1)
        self._ends.older = self._ends.newer = self._ends
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """From the oldest to the newest."""
        block = self._ends.newer
        while block is not None and block is not self._ends:
            yield block
            block = block.newer

    def push_newest(self, block: Block) -> None:
        """Add a block that is used last."""
        newest = self._ends.older
        assert newest is not None
        self._link(newest, block, self._ends)

    def push_oldest(self, block: Block) -> None:
        """Add a block that is used next."""
        oldest = self._ends.newer
        assert oldest is not None
        self._link(self._ends, block, oldest)

    def pop_oldest(self) -> Block:
        """Take the block that is used next. IndexError if there is none."""
        block = self._ends.newer
        if block is None or block is self._ends:
            raise IndexError("no free block")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Take this block out, wherever it stands. ValueError if it is not in the list."""
        older, newer = block.older, block.newer
        if older is None or newer is None:
            raise ValueError(f"block {block.id} is not free")
        older.newer, newer.older = newer, older
        block.older = block.newer = None
        self._length -= 1

    def _link(self, older: Block, block: Block, newer: Block) -> None:
        if block.older is not None:
            raise ValueError(f"block {block.id} is free already")
        block.older, block.newer = older, newer
        older.newer = newer.older = block
        self._length += 1
