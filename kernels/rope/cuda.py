"""Rotary position embedding on a device."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name

SOURCE = Path(__file__).with_name("kernel.cu")
_THREADS = 128
_STEP = 8


def instance(dtype: torch.dtype) -> str:
    """Of the kernel, for this dtype."""
    return f"tokenbus::rope<{c_name(dtype)}>"


class Rope:
    """Turns queries and keys where they lie. dtype: bfloat16 or float16. Raises ValueError for a head_dim that is no
    multiple of 16."""

    def __init__(self, load: LoadKernels, dtype: torch.dtype, num_heads: int, head_dim: int) -> None:
        """num_heads: those of queries and keys together."""
        if head_dim % (2 * _STEP) != 0:
            raise ValueError(f"head_dim {head_dim} is no multiple of {2 * _STEP}")
        self._num_heads = num_heads
        self._head_dim = head_dim
        self._instance = instance(dtype)
        self._module = load(SOURCE, [self._instance])

    def __call__(self, heads: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
        """heads: dtype [T, at least num_heads * head_dim], of which the first heads are turned; cos_sin: float32 [P, D]
        of frequencies.cos_sin_table; positions: int64 [T], each below P."""
        if not len(heads):
            return
        arguments = (
            heads,
            cos_sin,
            positions,
            np.int32(self._num_heads),
            np.int32(self._head_dim),
            np.int64(heads.stride(0)),
        )
        self._module.launch(self._instance, (len(heads), 1, 1), (_THREADS, 1, 1), arguments)
