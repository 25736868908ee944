"""RMSNorm on a device."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name

SOURCE = Path(__file__).with_name("kernel.cu")
_THREADS = 256
_STEP = 8
_HEAD_THREADS, _HEADS_PER_BLOCK = 128, 4
_MOST_HEAD_DIM = 256


def instance(dtype: torch.dtype) -> str:
    """Of the kernel, for outputs of this dtype."""
    return f"tokenbus::rms_norm<{c_name(dtype)}>"


class RmsNorm:
    """For rows of n values. dtype: bfloat16 or float16, of inputs and outputs. Raises ValueError for an n that is no
    multiple of 8."""

    def __init__(self, load: LoadKernels, dtype: torch.dtype, n: int) -> None:
        if n % _STEP != 0:
            raise ValueError(f"hidden_size {n} is no multiple of {_STEP}")
        self._n = n
        self._instance = instance(dtype)
        self._module = load(SOURCE, [self._instance])

    def __call__(self, out: Tensor, residual: Tensor, weight: Tensor, eps: float, x: Tensor | None = None) -> None:
        """residual += x, if there is an x; out = rms_norm(residual).

        out, x: dtype [T, n]; residual: float32 [T, n]; weight: float32 [n]; all contiguous.
        """
        if not len(out):
            return
        arguments = (out, residual, x, weight, np.int32(self._n), np.float32(eps))
        self._module.launch(self._instance, (len(out), 1, 1), (_THREADS, 1, 1), arguments)


def heads_instance(dtype: torch.dtype) -> str:
    """Of the kernel for heads, for this dtype."""
    return f"tokenbus::rms_norm_heads<{c_name(dtype)}>"


class RmsNormHeads:
    """For heads of head_dim values, in place. dtype: bfloat16 or float16. Raises ValueError for a head_dim that is no
    multiple of 8, or more than 256."""

    def __init__(self, load: LoadKernels, dtype: torch.dtype, head_dim: int) -> None:
        if head_dim % _STEP != 0 or head_dim > _MOST_HEAD_DIM:
            raise ValueError(f"head_dim {head_dim} is no multiple of {_STEP} up to {_MOST_HEAD_DIM}")
        self._instance = heads_instance(dtype)
        self._module = load(SOURCE, [self._instance])

    def __call__(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        """heads: dtype [T, H, D], a token's heads beside each other; weight: float32 [D]."""
        num_tokens, num_heads, head_dim = heads.shape
        if not num_tokens:
            return
        arguments = (
            heads,
            weight,
            np.int32(num_heads),
            np.int32(head_dim),
            np.int64(heads.stride(0)),
            np.float32(eps),
        )
        grid = (num_tokens, -(-num_heads // _HEADS_PER_BLOCK), 1)
        self._module.launch(self._instance, grid, (_HEAD_THREADS, 1, 1), arguments)
