"""What tests of the C++ products share: the levels that this machine has, and inputs."""

import numpy as np
import torch
from torch import Tensor

from kernels.linear.product import Products
from kernels.native.isa import cpu_flags, levels_of

LEVELS = levels_of(cpu_flags())

_PRODUCTS: dict[str, Products] = {}


def products(level: str) -> Products:
    """Products of two threads at this level, made once."""
    if level not in _PRODUCTS:
        _PRODUCTS[level] = Products(next(known for known in LEVELS if known == level), num_threads=2)
    return _PRODUCTS[level]


def random_values(rows: int, n_in: int, seed: int) -> Tensor:
    """bfloat16 [rows, n_in], rows of very different sizes."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, n_in)) * 10.0 ** generator.integers(-3, 4, (rows, 1))
    return torch.from_numpy(values.astype(np.float32)).bfloat16()


def assert_rows_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Every row within tolerance times its largest expected magnitude. actual: float32, expected: float64."""
    assert actual.dtype == torch.float32
    largest = expected.abs().amax(dim=1, keepdim=True)
    assert bool(((actual.double() - expected).abs() <= tolerance * largest + 1e-30).all())
