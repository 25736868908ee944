"""Who holds which KV block of one worker, and which contents lie where.

Paging after vLLM (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023), prefix reuse by chained content hashes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from services.scheduler.core.blocks import Block, FreeList


class BlockManager:
    """The KV blocks of one worker. Each block is in exactly one of three states:

        held     ref_count > 0     in the block tables of one or more sequences
        cached   ref_count == 0    has a hash; in the free list and in the prefix cache, a hit revives it
        free     ref_count == 0    no hash; in the free list

    A held block may have a hash too: then other sequences share it. Blocks of a sequence that ended may be given away
    while a plan that writes them is still outstanding: the worker executes plans in order, so whoever gets them writes
    later, and only blocks of folded tokens have a hash, which are never written again (rules 8 and 9).

    num_blocks: blocks of the worker. enable_prefix_caching: False finds and remembers no contents.
    """

    def __init__(self, num_blocks: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._blocks = [Block(number) for number in range(num_blocks)]
        self._cached: dict[bytes, Block] = {}
        self._free = FreeList()
        for block in self._blocks:
            self._free.push_newest(block)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds, cached ones among them."""
        return len(self._free)

    @property
    def num_held_blocks(self) -> int:
        """Blocks in at least one block table."""
        return self.num_blocks - len(self._free)

    @property
    def num_cached_contents(self) -> int:
        """Different block contents that a new sequence could hit."""
        return len(self._cached)

    def find_hits(self, hashes: Sequence[bytes], max_hits: int) -> list[int]:
        """Ids of the blocks that hold the longest known prefix of these contents, at most max_hits of them.

        Changes nothing; the answer stands until the next allocation.
        """
        cached = self._cached
        hits: list[int] = []
        for name in islice(hashes, max_hits):
            block = cached.get(name)
            if block is None:
                break
            hits.append(block.id)
        return hits

    def can_allocate(self, hits: Sequence[int], num_blocks: int, num_spare: int = 0) -> bool:
        """Whether allocate() would succeed. O(len(hits))."""
        num_revived = sum(1 for block_id in hits if not self._blocks[block_id].ref_count)
        return len(self._free) - num_revived - (num_blocks - len(hits)) >= num_spare

    def allocate(self, hits: Sequence[int], num_blocks: int, num_spare: int = 0) -> list[int] | None:
        """The block table of a sequence which starts with these hits; all of it, or None and nothing is changed.

            |<------------------- num_blocks -------------------->|
            |<------- hits ------->|<----------- new ------------>|
            | b7   | b2   | b9     | b4   | b0   | b5   | ...     |
              computed before and    from the old end of the free
              shared: one more ref   list, any contents forgotten

        hits: from find_hits(), nothing allocated since. num_spare: free blocks that must be left over (the watermark,
        so that running sequences can grow for a while before one of them is preempted).
        """
        if not self.can_allocate(hits, num_blocks, num_spare):
            return None
        for block_id in hits:
            block = self._blocks[block_id]
            if not block.ref_count:
                self._free.remove(block)
            block.ref_count += 1
        table = list(hits)
        table.extend(self._take().id for _ in range(num_blocks - len(hits)))
        return table

    def extend(self, table: list[int], num_blocks: int) -> bool:
        """Append new blocks to a block table; all of them, or False and nothing is changed."""
        if num_blocks > len(self._free):
            return False
        table.extend(self._take().id for _ in range(num_blocks))
        return True

    def free(self, table: Sequence[int]) -> None:
        """Give back a block table. Its end is reused before its beginning, which more sequences can share."""
        for block_id in reversed(table):
            block = self._blocks[block_id]
            block.ref_count -= 1
            if block.ref_count:
                continue
            if block.hash is None:
                self._free.push_oldest(block)
            else:
                self._free.push_newest(block)

    def register(self, block_id: int, name: bytes) -> None:
        """This held block is full, and all its tokens are folded: others may share it under this name.

        Contents known already keep their first block; the second stays nameless and is reused early.
        """
        block = self._blocks[block_id]
        if not self.enable_prefix_caching or name in self._cached or block.hash is not None:
            return
        block.hash = name
        self._cached[name] = block

    def forget(self, table: Sequence[int]) -> None:
        """Nobody finds the contents of these blocks any more; who holds them goes on."""
        for block_id in table:
            block = self._blocks[block_id]
            if block.hash is not None:
                del self._cached[block.hash]
                block.hash = None

    def load(self, contents: Iterable[tuple[int, bytes]]) -> int:
        """Take over what a worker reports to hold (rule 10), oldest first; how many contents were new.

        For a manager without held blocks. Unknown block ids and repeated entries are passed over: a report comes from
        another process, and a block that is not loaded costs only its recomputation.
        """
        if not self.enable_prefix_caching:
            return 0
        num_loaded = 0
        for block_id, name in contents:
            if not 0 <= block_id < self.num_blocks or name in self._cached:
                continue
            block = self._blocks[block_id]
            if block.hash is not None or block.ref_count:
                continue
            block.hash = name
            self._cached[name] = block
            self._free.remove(block)
            self._free.push_newest(block)
            num_loaded += 1
        return num_loaded

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Everything that is wrong, given all block tables in use; empty when all is well. O(num_blocks)."""
        held: Counter[int] = Counter()
        problems = []
        for table in tables:
            held.update(table)
            if len(set(table)) != len(table):
                problems.append(f"a block table holds a block twice: {table}")
        free = [block.id for block in self._free]
        if len(free) != len(set(free)) or len(free) != len(self._free):
            problems.append(f"the free list of length {len(self._free)} walks over {free}")
        in_free_list = set(free)
        for block in self._blocks:
            if block.ref_count != held[block.id]:
                problems.append(f"block {block.id} has ref_count {block.ref_count}, {held[block.id]} tables hold it")
            if (block.ref_count == 0) != (block.id in in_free_list):
                problems.append(f"block {block.id} has ref_count {block.ref_count}, free: {block.id in in_free_list}")
            if block.hash is not None and self._cached.get(block.hash) is not block:
                problems.append(f"block {block.id} has a hash that the prefix cache does not lead to")
        problems.extend(
            f"the prefix cache leads to block {block.id} by another name"
            for name, block in self._cached.items()
            if block.hash != name
        )
        return problems

    def _take(self) -> Block:
        block = self._free.pop_oldest()
        if block.hash is not None:
            del self._cached[block.hash]
            block.hash = None
        block.ref_count = 1
        return block
