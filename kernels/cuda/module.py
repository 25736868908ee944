"""What launches kernels: a device (device_module.py), or the emulator of the tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

Dim3 = tuple[int, int, int]
# A tensor or None goes as its address, a NumPy scalar as itself. Python's own numbers are refused: nothing says how
# wide they are, and CuPy would pass a float as a double.
Argument = Tensor | np.generic | None


class KernelModule(Protocol):
    """Compiled instances of the kernels of one source file."""

    def launch(
        self, instance: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        """Run an instance, by the name that it was loaded under; on a device by torch's current stream, without a wait.

        grid: blocks, none of them 0. block: threads. shared_bytes: of dynamic shared memory. Raises TypeError for an
        argument whose width is not told.
        """


class LoadKernels(Protocol):
    """Compiles, or finds compiled, and loads."""

    def __call__(self, source: Path, instances: Sequence[str]) -> KernelModule:
        """instances: C++ names of kernels with their template arguments, e.g. tokenbus::rms_norm<__nv_bfloat16>."""


def c_name(dtype: Any) -> str:
    """CUDA's type for a torch dtype. Raises KeyError where the kernels have none."""
    return _C_NAMES[str(dtype).removeprefix("torch.")]


_C_NAMES = {
    "bfloat16": "__nv_bfloat16",
    "float16": "__half",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float32": "float",
}
