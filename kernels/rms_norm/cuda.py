"""RMSNorm on a device."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name

SOURCE = Path(__file__).with_name("kernel.cu")
_THREADS = 256
_STEP = 8


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
