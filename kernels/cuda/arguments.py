"""A kernel's arguments as numbers of a known width."""

import numpy as np
from torch import Tensor

from kernels.cuda.module import Argument

_NUMBERS = "biuf"  # NumPy's kinds: bool, signed, unsigned, floating
_MAX_BYTES = 8


def as_number(argument: Argument) -> np.generic:
    """A tensor's address, 0 for None, a NumPy number as it is. Raises TypeError for all else."""
    if isinstance(argument, Tensor):
        return np.uint64(argument.data_ptr())
    if argument is None:
        return np.uint64(0)
    if isinstance(argument, np.generic) and argument.dtype.kind in _NUMBERS and argument.itemsize <= _MAX_BYTES:
        return argument
    raise TypeError(f"a kernel's argument is a tensor, a NumPy number or None, not {type(argument).__name__}")
