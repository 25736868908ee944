"""What is checked: an operation at a shape."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cuda.module import LoadKernels

# Results are rounded once: half a unit in the last place, and as much again for a float32 sum in another order.
_RELATIVE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 1e-5}
_ABSOLUTE = 1e-5


class Size(Enum):
    """small: for the emulator, which runs a thread at a time; full: such that a device's memory sets the pace."""

    SMALL = "small"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Trial:
    """A case whose tensors are made.

    launch: of the kernel, may be called again and again. compare: after the first launch; the largest error, as a share
    of what is allowed. num_bytes: what a launch has to read and write at least. num_operations: multiplications and
    additions, where they set the pace.
    """

    launch: Callable[[], None]
    compare: Callable[[], float]
    num_bytes: int
    num_operations: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """prepare: makes the tensors on the device, the expected results included."""

    operation: str
    what: str
    prepare: Callable[[LoadKernels, torch.device], Trial]


def short_name(dtype: torch.dtype) -> str:
    """For a case's name, e.g. bfloat16."""
    return str(dtype).removeprefix("torch.")


def random_tensor(seed: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normally distributed, the same on every machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def to_numpy(tensor: Tensor) -> NDArray[np.float32]:
    """For the reference; a copy."""
    found: NDArray[np.float32] = tensor.float().cpu().numpy().copy()
    return found


def error(actual: Tensor, expected: NDArray[np.float32]) -> float:
    """The largest one, as a share of what rounding to the tensor's dtype allows; infinite if something is no number."""
    difference = np.abs(to_numpy(actual) - expected)
    allowed = _ABSOLUTE + 2 * _RELATIVE[actual.dtype] * np.abs(expected)
    with np.errstate(invalid="ignore"):  # infinities
        shares = difference / allowed
    return float(shares.max()) if np.isfinite(shares).all() else float("inf")


def mismatch(actual: Tensor, expected: NDArray[np.generic]) -> float:
    """0 where all bytes are equal, else infinite."""
    found = actual.contiguous().view(torch.uint8).cpu().numpy()
    return 0.0 if np.array_equal(found, expected) else float("inf")
