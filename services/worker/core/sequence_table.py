"""All sequences that this worker holds in its epoch, as columns over slots.

A sequence has no prefill or decode mode: num_computed catches up with the tokens it has. Slots are rows of numpy
arrays that grow by doubling, so that a step reads and writes 256 sequences in a handful of array operations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.worker.core.block_ledger import BlockLedger
from services.worker.core.new_sequence import MAX_ENDERS, enders_of, problem_of
from services.worker.engine.interface import RowSampling
from shared.block_hash import HASH_BYTES
from shared.endings import Endings
from shared.messages.pipeline import NewSequence

FIRST_CAPACITY = 64


class SequenceTable:
    """Columns over slots; only these classes of services.worker.core write them.

    As of the newest step that is begun:
    block_tables: int32 [capacity, max_blocks], 0 beyond num_blocks. num_computed: tokens whose KV is written then.
    num_outputs: tokens that are sampled then. pending_row: the row of a running step that samples the last of them, -1
    if it is known.

    As of the newest step that is finished:
    prefix_hash: uint32, CRC of the tokens whose KV is written. tail: int32 [capacity, block_size], the ids in the block
    being filled; parents: uint8 [capacity, HASH_BYTES], the hash of the block before that one. last_token: the token
    sampled last in this epoch, -1 before. finished: ended here by EOS, stop token, length or an error; later plans that
    still hold the sequence are skipped (rule 8).

    rows: RowSampling objects, None in slots that hold no sequence or a rejected one.
    """

    def __init__(self, ledger: BlockLedger, block_size: int, max_model_len: int, vocab_size: int) -> None:
        self.ledger = ledger
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.max_blocks = -(-max_model_len // block_size)
        self.clear()

    def clear(self) -> None:
        """Hold no sequence at all; the ledger stays."""
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._found: tuple[bytes, NDArray[np.int64]] | None = None
        self._allocate(0, FIRST_CAPACITY)
        self.rows: NDArray[np.object_] = np.full(self.capacity, None)
        self.histories: dict[int, NDArray[np.int32]] = {}
        self.many_enders: dict[int, Endings] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def num_unfinished(self) -> int:
        """Sequences that a plan may still compute."""
        slots = list(self._slots.values())
        return len(slots) - int(self.finished[slots].sum())

    # ---- coming and going -------------------------------------------------------------------------------------------

    def load(self, new: NewSequence) -> str | None:
        """Hold a sequence from what the plan tells of it; the reason if that cannot be right, and then as finished.

        What the cached blocks hold comes from the ledger, never from the plan: the prefix hash of a wrong hit differs.
        """
        blocks = np.frombuffer(new.block_ids, dtype=np.int32) if len(new.block_ids) % 4 == 0 else None
        problem = problem_of(new, blocks, self.ledger.num_blocks, self.block_size, self.max_model_len, self.vocab_size)
        if problem is not None or blocks is None:
            self.reject(new.sequence)
            return problem
        num_cached = new.num_cached_tokens // self.block_size
        chain = self.ledger.chain_end(blocks[:num_cached], new.cache_key)
        if chain is None:
            self.reject(new.sequence)
            return "the worker does not hold the cached blocks of the plan as one chain"
        self.ledger.forget(blocks[num_cached:])
        slot = self._new_slot(new.sequence)
        self._fill(slot, new, blocks)
        self.parents[slot] = np.frombuffer(chain[0], dtype=np.uint8)
        self.prefix_hash[slot] = chain[1]
        return None

    def reject(self, sequence: int) -> None:
        """Hold a sequence only to skip it until it is forgotten."""
        self.finished[self._new_slot(sequence)] = True

    def forget(self, sequence: int) -> None:
        """Hold it no more; unknown ones are no error."""
        slot = self._slots.pop(sequence, None)
        if slot is None:
            return
        self._found = None
        self.block_tables[slot, : self.num_blocks[slot]] = 0
        self.rows[slot] = None
        self.histories.pop(slot, None)
        self.many_enders.pop(slot, None)
        self._free.append(slot)

    def find(self, sequences: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Slots of these sequences, -1 for unknown ones."""
        key = sequences.tobytes()
        if self._found is None or self._found[0] != key:
            slot_of = self._slots.get
            slots = np.array([slot_of(sequence, -1) for sequence in sequences.tolist()], dtype=np.int64)
            self._found = (key, slots)
        return self._found[1]

    # ---- growing ----------------------------------------------------------------------------------------------------

    def add_blocks(self, slots: NDArray[np.int64], counts: NDArray[np.int32], blocks: NDArray[np.int32]) -> None:
        """Append counts[i] of the concatenated blocks to the table of slots[i]; they are about to be written."""
        self.ledger.forget(blocks)
        growing = np.flatnonzero(counts)
        counts = counts[growing]
        item = np.repeat(growing, counts)
        within = np.arange(len(blocks)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.block_tables[slots[item], self.num_blocks[slots[item]] + within] = blocks
        self.num_blocks[slots[growing]] += counts

    def add_step(self, slots: NDArray[np.int64], context_lens: NDArray[np.int32]) -> None:
        """A step is begun that writes KV up to these lengths."""
        self.num_computed[slots] = context_lens

    def add_pending(self, slots: NDArray[np.int64], counts: NDArray[np.int32]) -> None:
        """A step is begun whose rows sample one token for each slot, the counts-th output."""
        self.num_outputs[slots] = counts
        self.pending_row[slots] = np.arange(len(slots))

    def add_outputs(self, slots: NDArray[np.int64], tokens: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        """One token for each slot, the counts-th; finishes those which end with it (EOS, stop token, length)."""
        self.last_token[slots] = tokens
        enders = (self.enders[slots] == tokens[:, None]).any(axis=1) & (counts > self.min_tokens[slots])
        self.finished[slots] |= enders | (counts >= self.max_tokens[slots])
        if self.histories or self.many_enders:
            self._add_rare(slots.tolist(), tokens.tolist(), counts.tolist())

    def _add_rare(self, slots: list[int], tokens: list[int], counts: list[int]) -> None:
        """What only few sequences need: the history of ids for penalties, a long list of stop tokens."""
        for slot, token, count in zip(slots, tokens, counts, strict=True):
            if slot in self.histories:
                self.histories[slot][self.num_prompt[slot] + count - 1] = token
            if slot in self.many_enders and self.many_enders[slot].after(token, count) is not None:
                self.finished[slot] = True

    # ---- slots ------------------------------------------------------------------------------------------------------

    def _fill(self, slot: int, new: NewSequence, blocks: NDArray[np.int32]) -> None:
        sampling = new.sampling
        self.finished[slot] = False
        self.block_tables[slot, : len(blocks)] = blocks
        self.num_blocks[slot] = len(blocks)
        self.num_computed[slot] = new.num_cached_tokens
        self.num_prompt[slot] = new.num_prompt_tokens
        self.num_outputs[slot] = new.num_tokens - new.num_prompt_tokens
        self.max_tokens[slot] = sampling.max_tokens
        self.min_tokens[slot] = sampling.min_tokens
        enders = enders_of(sampling)
        if len(enders) <= MAX_ENDERS:
            self.enders[slot, : len(enders)] = enders
        else:
            self.many_enders[slot] = Endings(sampling)
        self.rows[slot] = RowSampling(sampling, new.num_prompt_tokens)
        if sampling.has_penalties:
            history = np.zeros(max(new.num_prompt_tokens + sampling.max_tokens, new.num_tokens), dtype=np.int32)
            history[: new.num_tokens] = np.frombuffer(new.history, dtype=np.int32)
            self.histories[slot] = history

    def _new_slot(self, sequence: int) -> int:
        """A slot with the columns of nothing; a sequence that is there already gives up its own."""
        self.forget(sequence)
        self._found = None
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[sequence] = slot
        self.num_blocks[slot] = 0
        self.last_token[slot] = -1
        self.pending_row[slot] = -1
        self.enders[slot] = -1
        self.prefix_hash[slot] = 0
        return slot

    def _grow(self) -> None:
        capacity = self.capacity
        self._allocate(capacity, 2 * capacity)
        self.rows = np.concatenate((self.rows, np.full(capacity, None)))

    def _allocate(self, held: int, capacity: int) -> None:
        """New columns with `capacity` slots, of which the first `held` are taken over."""

        def column(name: str, dtype: Any, width: int | None = None) -> NDArray[Any]:
            fresh = np.zeros(capacity if width is None else (capacity, width), dtype=dtype)
            if held:
                fresh[:held] = getattr(self, name)
            return fresh

        self.block_tables: NDArray[np.int32] = column("block_tables", np.int32, self.max_blocks)
        self.num_blocks: NDArray[np.int32] = column("num_blocks", np.int32)
        self.num_computed: NDArray[np.int32] = column("num_computed", np.int32)
        self.num_prompt: NDArray[np.int32] = column("num_prompt", np.int32)
        self.num_outputs: NDArray[np.int32] = column("num_outputs", np.int32)
        self.pending_row: NDArray[np.int32] = column("pending_row", np.int32)
        self.last_token: NDArray[np.int32] = column("last_token", np.int32)
        self.max_tokens: NDArray[np.int32] = column("max_tokens", np.int32)
        self.min_tokens: NDArray[np.int32] = column("min_tokens", np.int32)
        self.enders: NDArray[np.int32] = column("enders", np.int32, MAX_ENDERS)
        self.prefix_hash: NDArray[np.uint32] = column("prefix_hash", np.uint32)
        self.tail: NDArray[np.int32] = column("tail", np.int32, self.block_size)
        self.parents: NDArray[np.uint8] = column("parents", np.uint8, HASH_BYTES)
        self.finished: NDArray[np.bool_] = column("finished", np.bool_)
        self.capacity = capacity
        self._free += range(capacity - 1, held - 1, -1)
