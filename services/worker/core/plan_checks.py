"""Each scheduled sequence of a plan, checked against what the worker holds, "again before the GPU"."""

import numpy as np
from numpy.typing import NDArray

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.sequence_table import SequenceTable


def find_bad_items(plan: PlanColumns, table: SequenceTable, slots: NDArray[np.int64]) -> dict[int, str]:
    """Items of the plan that must not be computed, with the reason; slots: the held slot of each item, all >= 0.

    Sequences known to be finished have no say any more: their items are skipped, right or wrong.
    """
    held = ~table.finished[slots]
    is_known = (table.last_token[slots] >= 0) | (table.pending_row[slots] >= 0)
    end = plan.start.astype(np.int64) + plan.num_scheduled
    num_own = plan.num_scheduled - plan.num_given
    num_outputs = table.num_outputs[slots]
    num_known = table.num_prompt[slots] + num_outputs
    room = (table.num_blocks[slots].astype(np.int64) + plan.num_new_blocks) * table.block_size
    checks = (
        (plan.start != table.num_computed[slots], "the plan does not start where the worker's KV ends"),
        (plan.num_scheduled < 1, "the plan schedules no token"),
        ((num_own < 0) | (num_own > 1), "the plan does not give the tokens that it schedules"),
        ((num_own == 1) & ~is_known, "the plan counts on a token that the worker never sampled"),
        (end > num_known, "the plan schedules tokens that do not exist yet"),
        ((num_own == 1) & (end != num_known), "the plan counts on a sampled token in the wrong place"),
        ((plan.position >= 0) & (end != num_known), "the plan samples before the last token"),
        ((plan.position >= 0) & (plan.position != num_outputs), "the plan samples at the wrong output position"),
        (end > table.max_model_len, f"the sequence would exceed max_model_len {table.max_model_len}"),
        (end > room, "the plan gives too few blocks"),
        (room > table.max_blocks * table.block_size, "the plan gives more blocks than max_model_len needs"),
    )
    bad: dict[int, str] = {}
    if (np.logical_or.reduce([failed for failed, _ in checks]) & held).any():
        for failed, reason in checks:
            for item in np.flatnonzero(failed).tolist():
                bad.setdefault(item, reason)
    _find_bad_values(plan.token_ids, plan.num_given, table.vocab_size, "a token id", bad)
    _find_bad_values(plan.new_blocks, plan.num_new_blocks, table.ledger.num_blocks, "a block id", bad)
    return {item: reason for item, reason in bad.items() if held[item]}


def _find_bad_values(
    values: NDArray[np.int32], counts: NDArray[np.int32], limit: int, label: str, bad: dict[int, str]
) -> None:
    """Which items hold a value outside 0 <= value < limit."""
    if not len(values) or (int(values.min()) >= 0 and int(values.max()) < limit):
        return
    item_of_value = np.repeat(np.arange(len(counts)), counts)
    for item in item_of_value[(values < 0) | (values >= limit)].tolist():
        bad.setdefault(item, f"{label} is not below {limit}")
