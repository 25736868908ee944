"""New keys and values into the paged cache on a device."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name

SOURCE = Path(__file__).with_name("kernel.cu")
_THREADS = 128
_STEP = 8


def instance(dtype: torch.dtype, cache_dtype: torch.dtype) -> str:
    """Of the kernel, for tokens of one dtype and a cache of another."""
    return f"tokenbus::kv_cache_write<{c_name(dtype)}, {c_name(cache_dtype)}>"


class KvCacheWrite:
    """dtype: bfloat16 or float16; cache_dtype: the same, or float8_e4m3fn with a scale for each head. Raises ValueError
    for a head_dim that is no multiple of 8."""

    def __init__(self, load: LoadKernels, dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> None:
        if head_dim % _STEP != 0:
            raise ValueError(f"head_dim {head_dim} is no multiple of {_STEP}")
        self._instance = instance(dtype, cache_dtype)
        self._module = load(SOURCE, [self._instance])

    def __call__(
        self,
        key_cache: Tensor,
        value_cache: Tensor,
        keys: Tensor,
        values: Tensor,
        slot_mapping: Tensor,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> None:
        """Stores keys / key_scales and values / value_scales.

        caches: cache_dtype [N, B, K, D], any strides that both share, the last 1. keys, values: dtype [T, K, D], heads
        contiguous, tokens apart as both share. slot_mapping: int64 [T], -1 skips a token. scales: float32 [K].
        """
        if not len(keys):
            return
        block_stride, token_stride, head_stride, _ = key_cache.stride()
        arguments = (
            key_cache,
            value_cache,
            keys,
            values,
            slot_mapping,
            key_scales,
            value_scales,
            *(np.int32(size) for size in (keys.shape[1], keys.shape[2], key_cache.shape[1])),
            *(np.int64(stride) for stride in (keys.stride(0), block_stride, token_stride, head_stride)),
        )
        self._module.launch(self._instance, (len(keys), 1, 1), (_THREADS, 1, 1), arguments)
