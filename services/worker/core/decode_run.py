"""The usual case, in few array operations: the same sequences as in the step before, one more token each.

Such a plan can be foretold to the byte: the same sequences, every start and position one higher, nothing given. If it
comes as foretold, every check of it holds already, and the columns of the step before need only be moved on by one. A
step at 16 sequences is otherwise a hundred tiny array operations, which cost more than what they compute.
"""

from copy import copy

import numpy as np
from numpy.typing import NDArray

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.prefix_crc import extend_all
from services.worker.core.sequence_table import SequenceTable
from services.worker.core.step_input import UNKNOWN, Items
from services.worker.engine.interface import StepInput


class DecodeRun:
    """Columns of the run's sequences, S of them, ahead of the table's while it lasts; flush writes them back.

    Begins after a step in which each sequence computed and sampled one token, and none is known to end with it.
    batch, counts: of the newest step that is begun, and int32, the outputs that it makes. tokens, prefix_hashes: as the
    newest step of the run that is finished leaves them, int32 sampled last, uint32 of all that is computed; None while
    there is none, then the table has them.
    """

    def __init__(self, table: SequenceTable, items: Items, batch: StepInput) -> None:
        self.batch = batch
        self.slots = items.slots
        self.counts = table.num_outputs[self.slots]
        self.key = items.sequences.tobytes()
        self.tokens: NDArray[np.int32] | None = None
        self.prefix_hashes: NDArray[np.uint32] | None = None
        self._items = items
        self._table = table
        self._enders = table.enders[self.slots]
        self._min_tokens = table.min_tokens[self.slots]
        self._has_enders = bool((self._enders >= 0).any())
        until_length = int((table.max_tokens[self.slots] - self.counts).min())
        self._steps_left = min(until_length, table.max_model_len - int(batch.context_lens.max()))
        self._ones = np.ones(len(items), dtype=np.int32).tobytes()
        self._zeros = bytes(len(self._ones))
        self._all_rows = np.arange(len(items), dtype=np.int32)

    @staticmethod
    def can_begin(table: SequenceTable, items: Items, batch: StepInput) -> bool:
        """Whether this step may be followed by a run; rare needs keep to the long way."""
        count = len(items)
        is_plain = len(batch.token_ids) == count == len(batch.sampled) and not table.histories and not table.many_enders
        return is_plain and not bool(table.finished[items.slots].any())

    # ---- a plan comes -----------------------------------------------------------------------------------------------

    def is_foretold(self, columns: PlanColumns) -> bool:
        """Whether the plan only goes on with the run, and gives a block wherever one is needed."""
        plan = columns.plan
        if plan.sequences != self.key or plan.num_scheduled != self._ones or plan.num_given != self._zeros:
            return False
        if plan.new or plan.forget or columns.has_swaps or self._steps_left < 1:
            return False
        if plan.start != self.batch.context_lens.tobytes() or plan.position != self.counts.tobytes():
            return False
        return self._has_room(columns)

    def _has_room(self, columns: PlanColumns) -> bool:
        """Each sequence at the end of its last block gets one valid new block, and nobody else gets any."""
        is_full = self._offsets(self.batch) == self._table.block_size - 1
        if not columns.plan.new_blocks:
            return not bool(is_full.any())
        blocks, num_blocks = columns.new_blocks, self._table.num_blocks[self.slots]
        if int(blocks.min()) < 0 or int(blocks.max()) >= self._table.ledger.num_blocks:
            return False
        has_none_spare = num_blocks * self._table.block_size == self.batch.context_lens
        wanted: list[bool] = (is_full & has_none_spare).tolist()
        return bool(is_full.tolist() == wanted == columns.num_new_blocks.tolist())

    def _offsets(self, batch: StepInput) -> NDArray[np.int64]:
        """Of the step's tokens in their blocks."""
        return batch.positions % self._table.block_size

    def advance(self, columns: PlanColumns, is_ahead: bool) -> tuple[Items, StepInput]:
        """The foretold step. is_ahead: the step before it still runs."""
        before, table = self.batch, self._table
        slot_mapping = before.slot_mapping + 1
        block_tables = before.block_tables
        if columns.plan.new_blocks:
            table.add_blocks(self.slots, columns.num_new_blocks, columns.new_blocks)
            growing = np.flatnonzero(columns.num_new_blocks)
            slot_mapping[growing] = columns.new_blocks.astype(np.int64) * table.block_size
            width = -(-int(before.context_lens.max() + 1) // table.block_size)
            block_tables = table.block_tables[:, :width][self.slots]
        items = copy(self._items)
        items.start, items.position = before.context_lens, self.counts
        self.batch = StepInput(
            token_ids=np.full(len(items), UNKNOWN, dtype=np.int32) if is_ahead else self._last_tokens,
            positions=before.positions + 1,
            slot_mapping=slot_mapping,
            cu_seqlens_q=before.cu_seqlens_q,
            context_lens=before.context_lens + 1,
            block_tables=block_tables,
            sampled=before.sampled,
            output_positions=self.counts,
            rows=before.rows,
            carried=self._all_rows if is_ahead else None,
        )
        self.counts = self.counts + 1
        self._steps_left -= 1
        return items, self.batch

    @property
    def _last_tokens(self) -> NDArray[np.int32]:
        return self._table.last_token[self.slots] if self.tokens is None else self.tokens

    # ---- the output of a step comes ---------------------------------------------------------------------------------

    def extend(self, batch: StepInput) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """Take the computed tokens into prefix hashes and tails: the hashes, and which sequences' last block is full
        now."""
        before = self._table.prefix_hash[self.slots] if self.prefix_hashes is None else self.prefix_hashes
        self.prefix_hashes = extend_all(before, batch.token_ids)
        offsets = self._offsets(batch)
        self._table.tail[self.slots, offsets] = batch.token_ids
        return self.prefix_hashes, np.flatnonzero(offsets == self._table.block_size - 1)

    def add_outputs(self, batch: StepInput, tokens: NDArray[np.int32]) -> bool:
        """Take the sampled tokens; whether the run goes on, since no sequence ends with its own."""
        self.tokens = tokens
        if batch is self.batch and self._steps_left < 1:
            return False
        if not self._has_enders:
            return True
        ended = (self._enders == tokens[:, None]).any(axis=1) & (batch.output_positions >= self._min_tokens)
        return not bool(ended.any())

    def flush(self, is_running: bool) -> None:
        """Write the columns back to the table. is_running: the newest step that is begun is not finished."""
        table, slots = self._table, self.slots
        table.add_step(slots, self.batch.context_lens)
        table.add_pending(slots, self.counts)
        if not is_running:
            table.pending_row[slots] = UNKNOWN
        if self.prefix_hashes is not None:
            table.prefix_hash[slots] = self.prefix_hashes
        if self.tokens is not None:
            table.last_token[slots] = self.tokens
