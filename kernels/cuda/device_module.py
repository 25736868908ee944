"""Kernels on a device: loaded through CuPy, launched on torch's stream, with torch's memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cupy.cuda import function
from cupy_backends.cuda.api import driver
from torch import Tensor

from kernels.cuda.arguments import as_number
from kernels.cuda.compiler import Resources
from kernels.cuda.cubin_cache import CubinCache
from kernels.cuda.module import Argument, Dim3, KernelModule

_SHARED_LIMIT_BYTES = 48 << 10  # static and dynamic together, unless a kernel is allowed more
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
        self._dynamic_limits = {
            instance: _SHARED_LIMIT_BYTES - resources.shared for instance, resources in self.resources.items()
        }

    def launch(
        self, instance: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        """See KernelModule."""
        if 0 in grid:
            raise ValueError(f"{instance}: a grid of {grid} blocks")
        kernel = self._functions[instance]
        if shared_bytes > self._dynamic_limits[instance]:
            driver.funcSetAttribute(kernel.ptr, _MAX_DYNAMIC_SHARED, shared_bytes)
            self._dynamic_limits[instance] = shared_bytes
        numbers = tuple(as_number(_reachable(argument)) for argument in arguments)
        kernel(grid, block, numbers, shared_bytes, _CurrentStream())


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


def _reachable(argument: Argument) -> Argument:
    if isinstance(argument, Tensor) and not (argument.is_cuda or argument.is_pinned()):
        raise ValueError(f"a kernel cannot reach a tensor {tuple(argument.shape)} in the host's memory")
    return argument
