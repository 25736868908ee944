"""Attention at the shapes of the goals: our kernels, and torch's scaled_dot_product_attention on dense caches.

Decoding is a share of the bandwidth of a plain copy in the same run, keys and values counted once; prompts are TFLOP/s.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu_check.attention_inputs import (
    DECODE,
    DECODE_FP8,
    FP8_GOAL,
    FP8_STRETCH,
    PREFILL,
    PREFILL_OF_CUDNN,
    PREFILL_OF_FLASH,
    TINY_DECODE,
    TINY_FP8,
    TINY_PREFILL,
    Inputs,
    Row,
    make_inputs,
)
from bench.gpu_check.attention_table import (
    ALLOWED,
    OURS,
    Clock,
    Peer,
    add_decode,
    add_peer,
    add_prefill,
    difference,
    verdict,
)
from bench.gpu_check.findings import Findings
from bench.gpu_check.where import Where

_BACKENDS = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION}
_FP8_TABLE = "Decode with a cache of fp8"
_PROMPT_TABLE = "Prompts against peers"


def run(findings: Findings, where: Where) -> None:
    """All rows; tiny ones in a dry run, which only compares."""
    clock = Clock(where)
    decode, fp8, prefill = (TINY_DECODE, TINY_FP8, TINY_PREFILL) if where.is_dry else (DECODE, DECODE_FP8, PREFILL)
    if clock.copy_gb_per_s is not None:
        findings.note(f"A plain copy: {clock.copy_gb_per_s:.0f} GB/s, read and written bytes counted.")
    seconds = {row.name: _decode(findings, where, clock, row) for row in decode}
    fp8_seconds = _decode(findings, where, clock, fp8)
    speed_up = _ratio(seconds[decode[0].name], fp8_seconds)
    findings.row(
        _FP8_TABLE,
        row=fp8.name,
        **{"times as fast as bfloat16": speed_up, **verdict(speed_up, FP8_GOAL, FP8_STRETCH)},
    )
    _prefill(findings, where, clock, prefill)


def _decode(findings: Findings, where: Where, clock: Clock, row: Row) -> float | None:
    """Ours first, then peers on the same numbers. Seconds of ours."""
    inputs = make_inputs(row, where)
    seconds = clock(inputs.launch)
    _check(findings, inputs, row)
    add_decode(findings, clock, row, OURS, seconds)
    is_uniform = len(set(row.lengths)) == 1
    if is_uniform and not row.is_fp8:
        for name, make in _peers(inputs, where, is_causal=False):
            add_peer(findings, clock, row, name, make, add_decode)
    return seconds


def _prefill(findings: Findings, where: Where, clock: Clock, row: Row) -> None:
    inputs = make_inputs(row, where)
    seconds = clock(inputs.launch)
    _check(findings, inputs, row)
    add_prefill(findings, clock, row, OURS, seconds)
    shares = {"SDPA flash": PREFILL_OF_FLASH, "SDPA cuDNN": PREFILL_OF_CUDNN}
    for name, make in _peers(inputs, where, is_causal=True):
        share = _ratio(add_peer(findings, clock, row, name, make, add_prefill), seconds)
        if name in shares:
            findings.row(
                _PROMPT_TABLE, row=row.name, peer=name, **{"ours of its rate": share, **verdict(share, shares[name], 0)}
            )


def _peers(inputs: Inputs, where: Where, is_causal: bool) -> list[tuple[str, Callable[[], Peer]]]:
    """On dense copies of the same caches."""
    query, keys, values = inputs.dense_query(), inputs.dense(inputs.key_cache), inputs.dense(inputs.value_cache)

    def attend() -> Tensor:
        return scaled_dot_product_attention(query, keys, values, is_causal=is_causal, enable_gqa=True)

    def by(backend: SDPBackend) -> Peer:
        def attend_by() -> Tensor:
            with sdpa_kernel(backend):
                return attend()

        return attend_by

    if where.is_dry:
        return [("SDPA", lambda: attend)]
    return [(name, partial(by, backend)) for name, backend in _BACKENDS.items()]


def _check(findings: Findings, inputs: Inputs, row: Row) -> None:
    """Ours against torch in the same dtype, one sequence at a time."""
    worst = 0.0
    own, query = inputs.dense_out(), inputs.dense_query()
    caches = [inputs.dense(cache.to(torch.bfloat16)) for cache in (inputs.key_cache, inputs.value_cache)]
    for index in {0, len(row.lengths) // 2, len(row.lengths) - 1}:
        keys, values = (cache[index : index + 1, :, : row.lengths[index]] for cache in caches)
        expected = scaled_dot_product_attention(
            query[index : index + 1], keys, values, is_causal=row.queries > 1, enable_gqa=True
        )
        worst = max(worst, difference(own[index : index + 1], expected))
    findings.check(f"{row.name}: equals torch", worst <= ALLOWED, f"off by {worst:.1e} of the norm")


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else round(one / other, 2)
