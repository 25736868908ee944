"""What every layer's attention of one step shares: which slots to gather, and what is masked.

Made once a step from the block tables, used by all layers. Sequences with a single query (decoding) are batched, padded
to the longest of their group; groups are formed by length, so that a short sequence never pays for a long one. A
sequence with more queries (a prefill chunk) is a group of its own: nothing of it is padded.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# One more group costs about as much as gathering this many tokens of padding.
_GROUP_COST_TOKENS = 256


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """S sequences with one query each, padded to num_keys keys.

    rows: int64 [S], their rows of the step's queries. slots: int64 [S * num_keys]; padding repeats the sequence's own
    last slot. mask: [S, 1, 1, num_keys], 0 or -inf, or None where nothing is padded.
    """

    rows: Tensor
    slots: Tensor
    num_keys: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One sequence with the queries [first_row, last_row) of the step. slots: int64 [number of keys].

    mask: [queries, keys], 0 or -inf; None where the queries are all tokens there are (plainly causal).
    """

    first_row: int
    last_row: int
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The groups of one step; together they cover every query once."""

    decodes: list[DecodeGroup] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)


def plan_attention(
    cu_seqlens_q: NDArray[np.int32],
    context_lens: NDArray[np.int32],
    block_tables: NDArray[np.int32],
    block_size: int,
    dtype: torch.dtype,
    sliding_window: int | None = None,
) -> AttentionPlan:
    """cu_seqlens_q: int32 [S + 1], context_lens: int32 [S], block_tables: int32 [S, blocks of the longest].

    dtype: of the queries, hence of the masks. sliding_window: tokens a query sees, itself included; None for all.
    """
    num_queries = np.diff(cu_seqlens_q)
    lengths = context_lens.astype(np.int64)
    oldest = np.zeros_like(lengths)
    if sliding_window is not None:
        oldest = np.maximum(lengths - num_queries - sliding_window + 1, 0)
    plan = AttentionPlan()
    decoding = np.flatnonzero(num_queries == 1)
    for members in _group_by_length(decoding, (lengths - oldest)[decoding]):
        num_keys = int((lengths - oldest)[members].max())
        keys = oldest[members, None] + np.arange(num_keys)
        slots = _slots(block_tables[members], np.minimum(keys, lengths[members, None] - 1), block_size)
        mask = _mask(keys >= lengths[members, None], dtype)
        plan.decodes.append(
            DecodeGroup(
                rows=torch.from_numpy(cu_seqlens_q[members].astype(np.int64)),
                slots=torch.from_numpy(slots.reshape(-1)),
                num_keys=num_keys,
                mask=None if mask is None else mask[:, None, None, :],
            )
        )
    for sequence in np.flatnonzero(num_queries > 1):
        keys = np.arange(oldest[sequence], lengths[sequence])
        queries = np.arange(lengths[sequence] - num_queries[sequence], lengths[sequence])
        mask = None
        if queries[0] > 0 or (sliding_window is not None and len(keys) > sliding_window):
            hidden = keys[None, :] > queries[:, None]
            if sliding_window is not None:
                hidden |= keys[None, :] <= queries[:, None] - sliding_window
            mask = _mask(hidden, dtype)
        slots = _slots(block_tables[sequence : sequence + 1], keys[None, :], block_size)[0]
        first_row, last_row = int(cu_seqlens_q[sequence]), int(cu_seqlens_q[sequence + 1])
        plan.chunks.append(PrefillChunk(first_row, last_row, torch.from_numpy(slots), mask))
    return plan


def _group_by_length(members: NDArray[np.int64], num_keys: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Splits sequences so that the padding to each group's longest stays below the cost of another group."""
    groups: list[NDArray[np.int64]] = []
    order = np.argsort(-num_keys, kind="stable")
    start = 0
    padding = 0
    for index in range(1, len(order)):
        padding += int(num_keys[order[start]] - num_keys[order[index]])
        if padding > max(_GROUP_COST_TOKENS, (index - start) * int(num_keys[order[start]]) // 8):
            groups.append(members[order[start:index]])
            start, padding = index, 0
    if len(order):
        groups.append(members[order[start:]])
    return groups


def _slots(tables: NDArray[np.int32], positions: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Slots of positions [S, n] in sequences with these block tables: int64 [S, n]."""
    blocks = np.take_along_axis(tables.astype(np.int64), positions // block_size, axis=1)
    return blocks * block_size + positions % block_size


def _mask(hidden: NDArray[np.bool_], dtype: torch.dtype) -> Tensor | None:
    """0 where seen, -inf where hidden; None if nothing is hidden."""
    if not hidden.any():
        return None
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
