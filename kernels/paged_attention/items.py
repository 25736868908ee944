"""How a step's attention is cut into items, one for each block of threads (and each head of keys and values).

A sequence with one query is split along its keys where there are too few sequences to keep the device busy, or where
one is much longer than the others: every item then has about the same number of tiles. A sequence with several queries
is cut along its rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TILE_TOKENS = 16
PREFILL_ROWS = 64
_LEAST_TILES = 16  # of an item of a split sequence: merging costs as much as some tiles

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Items:
    """decode: int32 [items, 4]: sequence, first position, end position, slot of its partial result (-1: it is whole).
    splits: int32 [sequences, 2]: first slot and number of slots, 0 where a sequence is not split. num_slots: in use.
    prefill: int32 [items, 2]: sequence, first row; the longest first."""

    decode: Int32s
    splits: Int32s
    num_slots: int
    prefill: Int32s


def most_decode_items(num_sequences: int, num_parallel: int, num_kv_heads: int) -> int:
    """What cut makes of so many sequences at most."""
    return num_sequences + _wanted_items(num_parallel, num_kv_heads)


def cut(
    cu_seqlens_q: Int32s,
    context_lens: Int32s,
    heads_per_group: int,
    num_kv_heads: int,
    num_parallel: int,
    sliding_window: int = 0,
) -> Items:
    """cu_seqlens_q: int32 [S + 1], context_lens: int32 [S], as of a StepInput. num_parallel: blocks of threads that the
    device runs at a time. sliding_window: tokens that a query sees, itself included; 0: all."""
    num_queries = np.diff(cu_seqlens_q)
    single, several = np.flatnonzero(num_queries == 1), np.flatnonzero(num_queries > 1)
    splits = np.zeros((len(context_lens), 2), dtype=np.int32)
    decode, num_slots = _cut_keys(
        single, context_lens, _wanted_items(num_parallel, num_kv_heads), sliding_window, splits
    )
    prefill = _cut_rows(several, num_queries, context_lens, heads_per_group)
    return Items(decode, splits, num_slots, prefill)


def _wanted_items(num_parallel: int, num_kv_heads: int) -> int:
    return max(1, num_parallel // num_kv_heads)


def _cut_keys(
    sequences: NDArray[np.intp], context_lens: Int32s, num_wanted: int, sliding_window: int, splits: Int32s
) -> tuple[Int32s, int]:
    """Items of sequences with one query, and the number of slots; writes splits."""
    ends = context_lens[sequences].astype(np.int64)
    begins = (
        np.maximum(ends - sliding_window, 0) // TILE_TOKENS * TILE_TOKENS if sliding_window else np.zeros_like(ends)
    )
    tiles = -(-(ends - begins) // TILE_TOKENS)
    size = max(_LEAST_TILES, -(-int(tiles.sum()) // num_wanted))
    counts = -(-tiles // size)
    owner = np.repeat(np.arange(len(sequences)), counts)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    first_tile, end_tile = tiles[owner] * index // counts[owner], tiles[owner] * (index + 1) // counts[owner]
    is_split = counts > 1
    slots_before = np.cumsum(np.where(is_split, counts, 0)) - np.where(is_split, counts, 0)
    splits[sequences[is_split], 0] = slots_before[is_split]
    splits[sequences[is_split], 1] = counts[is_split]
    columns = (
        sequences[owner],
        begins[owner] + first_tile * TILE_TOKENS,
        np.minimum(begins[owner] + end_tile * TILE_TOKENS, ends[owner]),
        np.where(is_split[owner], slots_before[owner] + index, -1),
    )
    return np.stack(columns, axis=1).astype(np.int32), int(counts[is_split].sum())


def _cut_rows(sequences: NDArray[np.intp], num_queries: Int32s, context_lens: Int32s, heads_per_group: int) -> Int32s:
    """Items of sequences with several queries."""
    counts = -(-num_queries[sequences] * heads_per_group // PREFILL_ROWS)
    owner = np.repeat(np.arange(len(sequences)), counts)
    first_row = (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)) * PREFILL_ROWS
    of_item = sequences[owner]
    newest = context_lens[of_item] - num_queries[of_item] + (first_row + PREFILL_ROWS - 1) // heads_per_group
    order = np.argsort(-newest, kind="stable")
    return np.stack((of_item, first_row), axis=1).astype(np.int32)[order]
