"""From a checked plan to the columns of one engine step."""

import numpy as np
from numpy.typing import NDArray

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.sequence_table import SequenceTable
from services.worker.engine.interface import RowSampling, StepInput

UNKNOWN = -1


class Items:
    """The items of a plan that are computed, with their slots; columns as in PlanColumns."""

    def __init__(self, plan: PlanColumns, slots: NDArray[np.int64], keep: NDArray[np.bool_] | None) -> None:
        self.sequences = plan.sequences
        self.slots = slots
        self.start = plan.start
        self.num_scheduled = plan.num_scheduled
        self.num_given = plan.num_given
        self.position = plan.position
        self.num_new_blocks = plan.num_new_blocks
        self.token_ids = plan.token_ids
        self.new_blocks = plan.new_blocks
        if keep is not None:
            self.select(keep)

    def __len__(self) -> int:
        return len(self.slots)

    def select(self, keep: NDArray[np.bool_]) -> None:
        """Leave the others out."""
        self.token_ids = self.token_ids[np.repeat(keep, self.num_given)]
        self.new_blocks = self.new_blocks[np.repeat(keep, self.num_new_blocks)]
        self.sequences = self.sequences[keep]
        self.slots = self.slots[keep]
        self.start = self.start[keep]
        self.num_scheduled = self.num_scheduled[keep]
        self.num_given = self.num_given[keep]
        self.position = self.position[keep]
        self.num_new_blocks = self.num_new_blocks[keep]


def build_step_input(items: Items, table: SequenceTable) -> StepInput:
    """Columns of one step over S >= 1 items, whose new blocks are in the table already."""
    num_sequences, block_size = len(items), table.block_size
    cu_seqlens_q = np.zeros(num_sequences + 1, dtype=np.int32)
    np.cumsum(items.num_scheduled, out=cu_seqlens_q[1:])
    num_tokens = int(cu_seqlens_q[-1])
    if num_tokens == num_sequences:
        slots_of_tokens = items.slots
        positions = items.start.astype(np.int64)
    else:
        slots_of_tokens = np.repeat(items.slots, items.num_scheduled)
        positions = np.arange(num_tokens) + np.repeat(items.start - cu_seqlens_q[:-1], items.num_scheduled)
    block_of_tokens, offsets = np.divmod(positions, block_size)
    blocks = table.block_tables[slots_of_tokens, block_of_tokens].astype(np.int64)
    context_lens = items.start + items.num_scheduled
    width = -(-int(context_lens.max()) // block_size)
    sampled = np.flatnonzero(items.position >= 0).astype(np.int32)
    output_positions = items.position[sampled]
    token_ids, carried = _token_ids(items, table, cu_seqlens_q)
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=blocks * block_size + offsets,
        cu_seqlens_q=cu_seqlens_q,
        context_lens=context_lens,
        block_tables=table.block_tables[:, :width][items.slots],
        sampled=sampled,
        output_positions=output_positions,
        rows=_rows(items.slots[sampled], table, output_positions),
        carried=carried,
    )


def _token_ids(
    items: Items, table: SequenceTable, cu_seqlens_q: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
    """The given ids, with the token that the worker itself sampled last where the plan leaves the last one open; and
    the rows of the running step that sample those which nobody knows yet."""
    own = np.flatnonzero(items.num_given < items.num_scheduled)
    if not len(own):
        return items.token_ids, None
    slots = items.slots[own]
    last_tokens, pending_rows = table.last_token[slots], table.pending_row[slots]
    is_pending = pending_rows >= 0
    last_tokens[is_pending] = UNKNOWN
    if not len(items.token_ids):
        return last_tokens, pending_rows if is_pending.any() else None
    token_ids = np.empty(int(cu_seqlens_q[-1]), dtype=np.int32)
    open_places = cu_seqlens_q[1:][own] - 1
    is_given = np.ones(len(token_ids), dtype=np.bool_)
    is_given[open_places] = False
    token_ids[is_given] = items.token_ids
    token_ids[open_places] = last_tokens
    if not is_pending.any():
        return token_ids, None
    carried = np.full(len(token_ids), UNKNOWN, dtype=np.int32)
    carried[open_places] = pending_rows
    return token_ids, carried


def only(batch: StepInput, keep: NDArray[np.bool_]) -> tuple[StepInput, NDArray[np.int64]]:
    """The step of some of its sequences, and which rows are theirs. Raises ValueError if not all tokens are known."""
    if batch.carried is not None:
        raise ValueError("the step before has not told its tokens yet")
    num_scheduled = np.diff(batch.cu_seqlens_q)
    of_token = np.repeat(keep, num_scheduled)
    rows = np.flatnonzero(keep[batch.sampled])
    cu_seqlens_q = np.zeros(int(keep.sum()) + 1, dtype=np.int32)
    np.cumsum(num_scheduled[keep], out=cu_seqlens_q[1:])
    new_index = np.cumsum(keep, dtype=np.int32) - 1
    kept = StepInput(
        token_ids=batch.token_ids[of_token],
        positions=batch.positions[of_token],
        slot_mapping=batch.slot_mapping[of_token],
        cu_seqlens_q=cu_seqlens_q,
        context_lens=batch.context_lens[keep],
        block_tables=batch.block_tables[keep],
        sampled=new_index[batch.sampled[rows]].astype(np.int32),
        output_positions=batch.output_positions[rows],
        rows=[batch.rows[row] for row in rows.tolist()],
    )
    return kept, rows


def _rows(slots: NDArray[np.int64], table: SequenceTable, output_positions: NDArray[np.int32]) -> list[RowSampling]:
    """The sampled sequences' RowSamplings, one object for each sequence's life; only their histories move on."""
    rows: list[RowSampling] = table.rows[slots].tolist()
    if table.histories:
        for slot, position, row in zip(slots.tolist(), output_positions.tolist(), rows, strict=True):
            if slot in table.histories:
                row.history = table.histories[slot][: row.num_prompt_tokens + position]
    return rows
