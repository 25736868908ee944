"""Every kernel that has to compile: the tests hold each to its registers, the check compiles and loads each.

An operation registers with one line of CATALOGUE, or one for each of its kernels whose ceilings differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernels.cuda.attention_catalogue import attention_kernels
from kernels.kv_blocks import cuda as kv_blocks
from kernels.kv_cache_write import cuda as kv_cache_write
from kernels.paged_attention import cuda as paged_attention
from kernels.quant_matmul import cuda as quant_matmul
from kernels.rms_norm import cuda as rms_norm
from kernels.rope import cuda as rope
from kernels.sampling import cuda as sampling
from kernels.silu_and_mul import cuda as silu_and_mul

ARCHES = ("sm_80", "sm_89", "sm_90", "sm_100")
DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 80, 96, 128, 256)
# What tokens are computed in, and what the cache keeps them in.
CACHE_DTYPES = tuple((dtype, kept) for dtype in DTYPES for kept in (dtype, torch.float8_e4m3fn))


@dataclass(frozen=True)
class Kernels:
    """Instances of one source. further: those that only the long test run compiles, and a check that is told to.
    max_registers: what each may take of a thread's registers on every architecture."""

    operation: str
    source: Path
    instances: Sequence[str]
    further: Sequence[str] = ()
    max_registers: int = field(kw_only=True)


CATALOGUE: tuple[Kernels, ...] = (
    Kernels("rms_norm", rms_norm.SOURCE, [rms_norm.instance(dtype) for dtype in DTYPES], max_registers=48),
    Kernels("rms_norm", rms_norm.SOURCE, [rms_norm.heads_instance(dtype) for dtype in DTYPES], max_registers=40),
    Kernels("silu_and_mul", silu_and_mul.SOURCE, [silu_and_mul.instance(dtype) for dtype in DTYPES], max_registers=40),
    Kernels("rope", rope.SOURCE, [rope.instance(dtype) for dtype in DTYPES], max_registers=48),
    Kernels(
        "kv_cache_write",
        kv_cache_write.SOURCE,
        [kv_cache_write.instance(dtype, kept) for dtype, kept in CACHE_DTYPES],
        max_registers=40,
    ),
    Kernels("kv_blocks", kv_blocks.SOURCE, [kv_blocks.INSTANCE], max_registers=40),
    *(
        Kernels("paged_attention", paged_attention.SOURCE, usual, further, max_registers=most)
        for usual, further, most in attention_kernels(CACHE_DTYPES)
    ),
    Kernels(
        "quant_matmul",
        quant_matmul.SOURCE,
        [quant_matmul.few_instance(dtype, encoding) for dtype in DTYPES for encoding in quant_matmul.ENCODINGS],
        max_registers=128,  # two blocks on a multiprocessor
    ),
    Kernels(
        "quant_matmul",
        quant_matmul.SOURCE,
        [quant_matmul.many_instance(dtype, encoding) for dtype in DTYPES for encoding in quant_matmul.ENCODINGS],
        max_registers=255,
    ),
    Kernels("quant_matmul", quant_matmul.SOURCE, [quant_matmul.TAKE_INPUTS], max_registers=40),
    Kernels(
        "sampling",
        sampling.SOURCE,
        [sampling.instance(dtype) for dtype in sampling.DTYPES],
        max_registers=64,  # two blocks on a multiprocessor
    ),
)
