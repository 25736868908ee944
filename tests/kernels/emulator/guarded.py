"""Tensors that lie beside memory that nobody may touch: a byte past an end, or before a beginning, is a crash."""

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cuda.module import Argument, Dim3, KernelModule, LoadKernels
from tests.kernels.emulator.module import EmulationError

MAX_BYTES = 64 << 20  # larger tensors stay where they are
_SLACK = 0xA5  # what the rest of a first or last page is full of

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _Region:
    """A copy of num_bytes at an address, between two pages that cannot be touched."""

    def __init__(self, address: int, num_bytes: int, is_at_end: bool) -> None:
        self.original = _bytes_at(address, num_bytes)
        body = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._size = body + 2 * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._begin = int(_libc.mmap(None, self._size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0))
        first = self._begin + mmap.PAGESIZE
        for page in (self._begin, first + body):
            _check(_libc.mprotect(page, mmap.PAGESIZE, 0))
        self.address = first + body - num_bytes if is_at_end else first
        self.copy = _bytes_at(self.address, num_bytes)
        self._slack = (
            _bytes_at(first, body - num_bytes) if is_at_end else _bytes_at(first + num_bytes, body - num_bytes)
        )
        self._slack[:] = _SLACK
        self.copy[:] = self.original
        self._before = self.copy.copy()

    def take_back(self) -> None:
        """What was written into the copy, and that alone: the memory of views may lie in between."""
        is_changed = self.copy != self._before
        self.original[is_changed] = self.copy[is_changed]
        if np.any(self._slack != _SLACK):
            raise EmulationError("written outside a tensor")

    def unmap(self) -> None:
        """After this the addresses mean nothing."""
        _check(_libc.munmap(self._begin, self._size))


class GuardedModule:
    """A KernelModule that moves the memory of its arguments for each launch.

    It is aligned as its size is: a kernel that takes 16 bytes at a time has whole ones of them. is_at_end: the memory
    ends where none may be touched; else it begins there.
    """

    def __init__(self, module: KernelModule, is_at_end: bool) -> None:
        self._module = module
        self._is_at_end = is_at_end

    def launch(
        self, instance: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        """See KernelModule."""
        regions: dict[tuple[int, int], _Region] = {}
        try:
            moved = [self._moved(argument, regions) for argument in arguments]
            self._module.launch(instance, grid, block, moved, shared_bytes)
            for region in regions.values():
                region.take_back()
        finally:
            for region in regions.values():
                region.unmap()

    def _moved(self, argument: Argument, regions: dict[tuple[int, int], _Region]) -> Argument:
        if not isinstance(argument, Tensor) or span_bytes(argument) > MAX_BYTES:
            return argument
        where = argument.data_ptr(), span_bytes(argument)
        if where not in regions:
            regions[where] = _Region(*where, self._is_at_end)
        memory = (ctypes.c_uint8 * max(where[1], argument.element_size())).from_address(regions[where].address)
        return torch.frombuffer(memory, dtype=torch.uint8).view(argument.dtype)


def load_guarded(load: LoadKernels, is_at_end: bool) -> LoadKernels:
    """A LoadKernels of guarded modules."""

    def load_and_guard(source: Path, instances: Sequence[str]) -> KernelModule:
        return GuardedModule(load(source, instances), is_at_end)

    return load_and_guard


def span_bytes(tensor: Tensor) -> int:
    """From its first number to the end of its last, whatever lies between them."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _bytes_at(address: int, num_bytes: int) -> NDArray[np.uint8]:
    if not num_bytes:
        return np.empty(0, dtype=np.uint8)
    memory: Any = (ctypes.c_uint8 * num_bytes).from_address(address)
    found: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
    return found


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "memory cannot be guarded")
