"""Paged attention's part of the catalogue: a kernel for each group, head dimension and pair of dtypes, some 450 in all.

Every run of the tests compiles those of one usual shape; the long run compiles all.
"""

from collections.abc import Iterator, Sequence

import torch

from kernels.paged_attention.cuda import GROUPS, HEAD_DIMS, Instances, Shape

_USUAL_HEAD_DIM, _USUAL_DTYPE = 128, torch.bfloat16
_USUAL_GROUP = 8  # but 1 without tensor cores
_WIDEST_PLAIN_GROUP = 4
# Of a thread, by head dimension. Blocks of 128 threads: up to 128 registers four of them share a multiprocessor, up to
# 168 three, else two. NVRTC 13.0 gives prompts up to 22 registers more than 13.5 does.
_MAX_REGISTERS = {
    "decode_mma": {64: 136, 80: 152, 96: 168, 128: 200, 256: 255},
    "decode_simt": dict.fromkeys(HEAD_DIMS, 216),
    "combine_splits": dict.fromkeys(HEAD_DIMS, 64),
    "prefill_mma": {64: 200, 80: 224, 96: 224, 128: 248, 256: 255},
}


def attention_kernels(
    cache_dtypes: Sequence[tuple[torch.dtype, torch.dtype]],
) -> Iterator[tuple[list[str], list[str], int]]:
    """cache_dtypes: of tokens, and of what the cache keeps. Yields instances, further ones, and their registers."""
    for kind, ceilings in _MAX_REGISTERS.items():
        for head_dim, max_registers in ceilings.items():
            usual: dict[str, None] = {}  # sets that keep their order
            further: dict[str, None] = {}
            for dtype, kept in cache_dtypes:
                for group in GROUPS:
                    shape = (dtype, head_dim, group)
                    is_usual = shape == (_USUAL_DTYPE, _USUAL_HEAD_DIM, 1 if kind == "decode_simt" else _USUAL_GROUP)
                    (usual if is_usual else further).update(dict.fromkeys(_names(kind, dtype, kept, head_dim, group)))
            yield list(usual), [name for name in further if name not in usual], max_registers


def _names(kind: str, dtype: torch.dtype, kept: torch.dtype, head_dim: int, group: int) -> list[str]:
    """Of this kind for a shape, none if the operation would not take it."""
    shape = Shape(dtype, kept, num_heads=group, num_kv_heads=1, head_dim=head_dim, block_size=16, scale=1.0)
    found = Instances.of(shape, uses_tensor_cores=kind != "decode_simt")
    if kind == "decode_simt" and group > _WIDEST_PLAIN_GROUP:
        return []
    return [name for name in found.names() if name.startswith(f"tokenbus::{kind}<")]
