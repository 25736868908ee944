"""Kernels on a device: loaded through CuPy, launched on torch's stream, with torch's memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cupy.cuda import function
from cupy_backends.cuda.api import driver
from torch import Tensor

from kernels.cuda.compiler import Resources
from kernels.cuda.cubin_cache import CubinCache
from kernels.cuda.module import Argument, Dim3, KernelModule

_STATIC_LIMIT_BYTES = 48 << 10  # of dynamic shared memory, unless a kernel is allowed more
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class _CurrentStream:
    """torch's stream as CuPy takes one. Read at every launch: during a capture it is another."""

    __slots__ = ("ptr",)

    def __init__(self) -> None:
        self.ptr = torch.cuda.current_stream().cuda_stream


class DeviceModule:
    """A KernelModule on the current device. resources: by instance."""

    def __init__(self, source: Path, instances: Sequence[str], cache: CubinCache) -> None:
        compiled = cache.get(source, instances, current_arch())
        self.resources: dict[str, Resources] = compiled.resources
        self._module = function.Module()
        self._module.load(compiled.cubin)
        self._functions: dict[str, Any] = {
            instance: self._module.get_function(symbol) for instance, symbol in compiled.symbols.items()
        }
        self._shared_limits = dict.fromkeys(instances, _STATIC_LIMIT_BYTES)

    def launch(
        self, instance: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        """See KernelModule."""
        if 0 in grid:
            raise ValueError(f"{instance}: a grid of {grid} blocks")
        kernel = self._functions[instance]
        if shared_bytes > self._shared_limits[instance]:
            driver.funcSetAttribute(kernel.ptr, _MAX_DYNAMIC_SHARED, shared_bytes)
            self._shared_limits[instance] = shared_bytes
        kernel(grid, block, tuple(_as_scalar(argument) for argument in arguments), shared_bytes, _CurrentStream())


class DeviceLoader:
    """A LoadKernels for the current device."""

    def __init__(self, cache: CubinCache | None = None) -> None:
        self._cache = CubinCache() if cache is None else cache

    def __call__(self, source: Path, instances: Sequence[str]) -> KernelModule:
        return DeviceModule(source, instances, self._cache)


def current_arch() -> str:
    """The current device's architecture, e.g. sm_90."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _as_scalar(argument: Argument) -> np.generic:
    if argument is None:
        return np.uint64(0)
    if isinstance(argument, Tensor):
        return np.uint64(argument.data_ptr())
    if isinstance(argument, np.generic):
        return argument
    raise TypeError(f"a kernel's argument is a tensor, a NumPy scalar or None, not {type(argument).__name__}")
