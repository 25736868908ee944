"""What a device would take without a word, or refuse: the emulator says what is wrong with a launch."""

import ctypes
import math

import numpy as np
from torch import Tensor

from kernels.cuda.module import Argument, Dim3

# Of compute capabilities 8.0 to 10.0; shared memory: of those that have most.
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_SHARED_BYTES = 227 << 10


class Parameter(ctypes.Structure):
    """What a kernel takes in one place, see launch.h."""

    _fields_ = (("size", ctypes.c_int32), ("pointee", ctypes.c_int32), ("is_float", ctypes.c_int32))


def check_shape(grid: Dim3, block: Dim3, shared_bytes: int) -> None:
    """Raises ValueError for what every device refuses, and for a grid of 0."""
    if 0 in grid or any(size > most for size, most in zip(grid, MAX_GRID, strict=True)):
        raise ValueError(f"a grid of {grid} blocks")
    if not 0 < math.prod(block) <= MAX_THREADS or any(size > most for size, most in zip(block, MAX_BLOCK, strict=True)):
        raise ValueError(f"a block of {block} threads")
    if shared_bytes > MAX_SHARED_BYTES:
        raise ValueError(f"{shared_bytes} bytes of dynamic shared memory")


def mismatch(argument: Argument, parameter: Parameter) -> str:
    """What is wrong with it, or nothing. Memory of bytes goes as any memory, and any memory as bytes or structs."""
    if isinstance(argument, np.generic):
        if parameter.pointee:
            return "a number for a pointer"
        if argument.nbytes != parameter.size or isinstance(argument, np.floating) != bool(parameter.is_float):
            kind = "a floating" if parameter.is_float else "an integer"
            return f"{argument.dtype} for {kind} number of {parameter.size} bytes"
    elif not parameter.pointee:
        return f"an address for a number of {parameter.size} bytes"
    elif isinstance(argument, Tensor) and 1 not in (argument.element_size(), parameter.pointee):
        if argument.element_size() != parameter.pointee:
            return f"{argument.dtype} in memory where elements of {parameter.pointee} bytes are taken"
    return ""
