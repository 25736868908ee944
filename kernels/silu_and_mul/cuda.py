"""The SiLU gate on a device."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels, c_name

SOURCE = Path(__file__).with_name("kernel.cu")
_THREADS = 256
_STEP = 8


def instance(dtype: torch.dtype) -> str:
    """Of the kernel, for this dtype."""
    return f"tokenbus::silu_and_mul<{c_name(dtype)}>"


class SiluAndMul:
    """For rows of n outputs. dtype: bfloat16 or float16. Raises ValueError for an n that is no multiple of 8."""

    def __init__(self, load: LoadKernels, dtype: torch.dtype, n: int) -> None:
        if n % _STEP != 0:
            raise ValueError(f"intermediate_size {n} is no multiple of {_STEP}")
        self._n = n
        self._instance = instance(dtype)
        self._module = load(SOURCE, [self._instance])

    def __call__(self, out: Tensor, gate_up: Tensor) -> None:
        """out: dtype [T, n]; gate_up: dtype [T, 2 n], the gate in the first half of each row; both contiguous."""
        if not len(out):
            return
        num_blocks = -(-self._n // (_THREADS * _STEP))
        arguments = (out, gate_up, np.int32(self._n))
        self._module.launch(self._instance, (len(out), num_blocks, 1), (_THREADS, 1, 1), arguments)
