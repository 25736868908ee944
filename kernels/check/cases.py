"""All operations' cases. An operation adds a line to _MAKERS."""

from collections.abc import Callable

from kernels.check.case import Case, Size
from kernels.kv_blocks import check as kv_blocks
from kernels.kv_cache_write import check as kv_cache_write
from kernels.paged_attention import check as paged_attention
from kernels.quant_matmul import check as quant_matmul
from kernels.rms_norm import check as rms_norm
from kernels.rope import check as rope
from kernels.sampling import check as sampling
from kernels.silu_and_mul import check as silu_and_mul

_MAKERS: tuple[Callable[[Size], list[Case]], ...] = (
    rms_norm.cases,
    silu_and_mul.cases,
    rope.cases,
    kv_cache_write.cases,
    paged_attention.cases,
    sampling.cases,
    kv_blocks.cases,
    quant_matmul.cases,
)


def all_cases(size: Size) -> list[Case]:
    """In the order of the data path."""
    return [case for cases in _MAKERS for case in cases(size)]
