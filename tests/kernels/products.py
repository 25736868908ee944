"""What tests of the C++ products share: the levels that this machine has, and inputs.

Level EMULATED_AMX is there on every machine: the tile kernels on an emulation of the instructions.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.linear.product import Products
from kernels.native.isa import Level, cpu_flags, levels_of

EMULATED_AMX = "emulated amx"

_OF_THE_PROCESSOR = levels_of(cpu_flags())
_BUILDS: dict[str, tuple[Level, tuple[str, ...]]] = {level: (level, ()) for level in _OF_THE_PROCESSOR}
if _OF_THE_PROCESSOR:
    _BUILDS[EMULATED_AMX] = (_OF_THE_PROCESSOR[-1], ("TOKENBUS_EMULATE_AMX=1",))
LEVELS = list(_BUILDS)

_PRODUCTS: dict[str, Products] = {}


def products(level: str) -> Products:
    """Products of two threads at this level, made once."""
    if level not in _PRODUCTS:
        instructions, defines = _BUILDS[level]
        _PRODUCTS[level] = Products(instructions, num_threads=2, defines=defines)
    return _PRODUCTS[level]


def random_values(rows: int, n_in: int, seed: int) -> Tensor:
    """bfloat16 [rows, n_in], rows of very different sizes."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, n_in)) * 10.0 ** generator.integers(-3, 4, (rows, 1))
    return torch.from_numpy(values.astype(np.float32)).bfloat16()


def assert_within(actual: Tensor, expected: Tensor, allowed: Tensor | float) -> None:
    """No sum is further off than allowed, [rows, n_out] or broadcast to it. actual: float32, expected: float64."""
    assert actual.dtype == torch.float32
    beyond = (actual.double() - expected).abs() - allowed
    assert float(beyond.amax()) <= 1e-30, f"{float(beyond.amax())} beyond what is allowed"
