"""The usual case, in few array operations: the same sequences as in the step before, one more token each.

Such a plan can be foretold to the byte: the same sequences, every start and position one higher, nothing given. If it
comes as foretold, every check of it holds already, and the columns of the step before need only be moved on by one. A
step at 16 sequences is otherwise a hundred tiny array operations, which cost more than what they compute.
"""

import numpy as np
from numpy.typing import NDArray

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.prefix_crc import extend_all
from services.worker.core.sequence_table import SequenceTable
from services.worker.core.step_input import Items
from services.worker.engine.interface import StepInput


class DecodeRun:
    """Columns of the run's sequences, S of them, ahead of the table's while it lasts; flush writes them back.

    Begins after a step in which each sequence computed and sampled one token, and none ended. tokens: int32, sampled
    last. counts: int32, outputs with that one. prefix_hashes: uint32, of all that is computed.
    """

    def __init__(self, table: SequenceTable, items: Items, batch: StepInput) -> None:
        self.items = items
        self.batch = batch
        self.slots = items.slots
        self.tokens = table.last_token[self.slots]
        self.counts = table.num_outputs[self.slots]
        self.prefix_hashes = table.prefix_hash[self.slots]
        self.offsets = batch.positions % table.block_size
        self._table = table
        self._enders = table.enders[self.slots]
        self._min_tokens = table.min_tokens[self.slots]
        self._has_enders = bool((self._enders >= 0).any())
        until_length = int((table.max_tokens[self.slots] - self.counts).min())
        self._steps_left = min(until_length, table.max_model_len - int(batch.context_lens.max()))
        self.key = items.sequences.tobytes()
        self._ones = np.ones(len(items), dtype=np.int32).tobytes()
        self._zeros = bytes(len(self._ones))

    @staticmethod
    def can_begin(table: SequenceTable, items: Items, batch: StepInput) -> bool:
        """Whether the step that was just finished may be followed by a run; rare needs keep to the long way."""
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
        is_full = self.offsets == self._table.block_size - 1
        if not columns.plan.new_blocks:
            return not bool(is_full.any())
        blocks, num_blocks = columns.new_blocks, self._table.num_blocks[self.slots]
        if int(blocks.min()) < 0 or int(blocks.max()) >= self._table.ledger.num_blocks:
            return False
        has_none_spare = num_blocks * self._table.block_size == self.batch.context_lens
        wanted: list[bool] = (is_full & has_none_spare).tolist()
        return bool(is_full.tolist() == wanted == columns.num_new_blocks.tolist())

    def advance(self, columns: PlanColumns) -> StepInput:
        """Columns of the foretold step."""
        before, table = self.batch, self._table
        slot_mapping = before.slot_mapping + 1
        block_tables = before.block_tables
        self.offsets = self.offsets + 1
        if columns.plan.new_blocks:
            table.add_blocks(self.slots, columns.num_new_blocks, columns.new_blocks)
            growing = np.flatnonzero(columns.num_new_blocks)
            slot_mapping[growing] = columns.new_blocks.astype(np.int64) * table.block_size
            self.offsets[growing] = 0
            width = -(-int(before.context_lens.max() + 1) // table.block_size)
            block_tables = table.block_tables[:, :width][self.slots]
        self.items.start, self.items.position = before.context_lens, self.counts
        self.batch = StepInput(
            token_ids=self.tokens,
            positions=before.positions + 1,
            slot_mapping=slot_mapping,
            cu_seqlens_q=before.cu_seqlens_q,
            context_lens=before.context_lens + 1,
            block_tables=block_tables,
            sampled=before.sampled,
            output_positions=self.counts,
            rows=before.rows,
        )
        return self.batch

    # ---- its output comes -------------------------------------------------------------------------------------------

    def extend(self) -> NDArray[np.intp]:
        """Take the computed tokens into prefix hashes and tails; indices of sequences whose last block is full now."""
        self.prefix_hashes = extend_all(self.prefix_hashes, self.batch.token_ids)
        self._table.tail[self.slots, self.offsets] = self.batch.token_ids
        return np.flatnonzero(self.offsets == self._table.block_size - 1)

    def add_outputs(self, tokens: NDArray[np.int32]) -> bool:
        """Take the sampled tokens; False, with nothing taken, if a sequence ends with its token, and so the run."""
        if self._steps_left < 2:
            return False
        if self._has_enders:
            ended = (self._enders == tokens[:, None]).any(axis=1) & (self.counts >= self._min_tokens)
            if ended.any():
                return False
        self._steps_left -= 1
        self.tokens = tokens
        self.counts = self.counts + 1
        return True

    def flush(self, num_computed: NDArray[np.int32]) -> None:
        """Write the columns back to the table. num_computed: context lengths of what extend has taken in."""
        table = self._table
        table.num_computed[self.slots] = num_computed
        table.prefix_hash[self.slots] = self.prefix_hashes
        table.last_token[self.slots] = self.tokens
        table.num_outputs[self.slots] = self.counts
