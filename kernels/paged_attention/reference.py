"""Paged attention in float32 NumPy, a query and a head at a time."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def paged_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    cu_seqlens_q: NDArray[np.int32],
    context_lens: NDArray[np.int32],
    block_tables: NDArray[np.int32],
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float = 0.0,
) -> Array:
    """query: float32 [T, H, D]; key_cache, value_cache: float32 [N, B, K, D]; cu_seqlens_q: int32 [S + 1];
    context_lens: int32 [S]; block_tables: int32 [S, blocks of the longest]. soft_cap: what scores approach, 0 for no
    limit. Returns float32 [T, H, D]; all in float64 if the queries are."""
    output = np.zeros_like(query)
    num_heads = query.shape[1]
    block_size, num_kv_heads = key_cache.shape[1:3]
    heads_per_group = num_heads // num_kv_heads
    for sequence, context_len in enumerate(context_lens):
        first, last = cu_seqlens_q[sequence], cu_seqlens_q[sequence + 1]
        for token in range(first, last):
            position = context_len - (last - token)
            oldest = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            seen = np.arange(oldest, position + 1)
            blocks, offsets = block_tables[sequence, seen // block_size], seen % block_size
            for head in range(num_heads):
                keys = key_cache[blocks, offsets, head // heads_per_group]
                values = value_cache[blocks, offsets, head // heads_per_group]
                scores = keys @ query[token, head] * np.float32(scale)
                if soft_cap:
                    scores = np.float32(soft_cap) * np.tanh(scores / np.float32(soft_cap))
                weights = np.exp(scores - scores.max())
                output[token, head] = (weights / weights.sum()) @ values
    return output
