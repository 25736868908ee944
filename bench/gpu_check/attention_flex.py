"""A peer of our attention: torch's flex_attention, compiled, on dense caches of the same numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu_check.attention_inputs import DECODE, PREFILL, TINY_DECODE, TINY_PREFILL, Inputs, Row, make_inputs
from bench.gpu_check.attention_table import Add, Clock, Peer, add_decode, add_peer, add_prefill
from bench.gpu_check.findings import Findings
from bench.gpu_check.where import Where

WHO = "flex_attention"
_UNIFORM = (0, 1, 2)  # of DECODE: a recompilation for each further shape takes seconds


def run(findings: Findings, where: Where) -> None:
    """A row after the other; compiling takes most of the time, so that a dry run takes it as it is."""
    clock = Clock(where)
    attend: Any = flex_attention if where.is_dry else torch.compile(flex_attention, dynamic=False)
    rows = TINY_DECODE[:1] if where.is_dry else [DECODE[index] for index in _UNIFORM]
    for row in rows:
        _row(findings, clock, make_inputs(row, where), attend, add_decode)
    prefill = TINY_PREFILL if where.is_dry else PREFILL
    _row(findings, clock, make_inputs(prefill, where), attend, add_prefill)


def _row(findings: Findings, clock: Clock, inputs: Inputs, attend: Callable[..., Tensor], add: Add) -> None:
    row = inputs.row
    add_peer(findings, clock, row, WHO, lambda: _peer(inputs, attend), add, _expected(inputs, row))


def _peer(inputs: Inputs, attend: Callable[..., Tensor]) -> Peer:
    query, keys, values = inputs.dense_query(), inputs.dense(inputs.key_cache), inputs.dense(inputs.value_cache)
    if inputs.row.queries == 1:
        return lambda: attend(query, keys, values, enable_gqa=True)
    mask = create_block_mask(_is_seen, None, None, query.shape[2], keys.shape[2], device=query.device)
    return lambda: attend(query, keys, values, block_mask=mask, enable_gqa=True)


def _is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _expected(inputs: Inputs, row: Row) -> Tensor:
    query, keys, values = inputs.dense_query(), inputs.dense(inputs.key_cache), inputs.dense(inputs.value_cache)
    return scaled_dot_product_attention(query, keys, values, is_causal=row.queries > 1, enable_gqa=True)
