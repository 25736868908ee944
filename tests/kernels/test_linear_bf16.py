"""bfloat16 products at every level: against float64, the same alone and in a batch, NaN where it belongs."""

import ctypes
import dataclasses
import math
import mmap

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.linear.packing import pack_bf16
from tests.kernels.products import LEVELS, assert_within, products, random_values

pytestmark = pytest.mark.parametrize("level", LEVELS)

EPSILON = 2.0**-24


def random_weights(n_out: int, n_in: int, seed: int) -> torch.Tensor:
    """bfloat16."""
    values = np.random.default_rng(seed).standard_normal((n_out, n_in))
    return torch.from_numpy(values.astype(np.float32)).bfloat16()


def rounding(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """float64 [rows, n_out]: how far float32 sums may be off. Each addition's error, which add up like a random walk,
    on the scale of the sums of magnitudes. Twice six of its standard deviations."""
    magnitudes = values.double().abs() @ weights.double().abs().T
    return 12 * EPSILON * math.sqrt(values.shape[1]) * magnitudes


# Rows: up to beyond two tasks of 64, so that blocks of every size, whole and partial tiles and their overlaps are met.
# Inputs: beyond a chunk of AVX2, and multiples of nothing but two.
@settings(max_examples=60, deadline=None)
@given(
    n_out=st.integers(1, 100),
    pairs=st.integers(1, 300),
    rows=st.integers(1, 140),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
@example(n_out=32, pairs=16, rows=16, seed=0, bias=False)
@example(n_out=64, pairs=32, rows=32, seed=0, bias=False)
@example(n_out=33, pairs=129, rows=17, seed=0, bias=True)
@example(n_out=31, pairs=15, rows=33, seed=0, bias=True)
def test_sums_are_those_of_float64(level: str, n_out: int, pairs: int, rows: int, seed: int, bias: bool) -> None:
    values, weights = random_values(rows, 2 * pairs, seed), random_weights(n_out, 2 * pairs, seed)
    expected = values.double() @ weights.double().T
    tolerance = rounding(values, weights)
    added = torch.linspace(-1, 1, n_out) if bias else None
    if added is not None:
        expected += added.double()
        tolerance += expected.abs() * EPSILON
    assert_within(products(level).multiply(pack_bf16(weights, added), values), expected, tolerance)


@pytest.mark.parametrize("n_in", [64, 70, 576])
def test_every_number_of_rows_gives_a_row_the_same_sums(level: str, n_in: int) -> None:
    packed, values = pack_bf16(random_weights(40, n_in, 1)), random_values(70, n_in, 1)
    alone = torch.cat([products(level).multiply(packed, values[row : row + 1]) for row in range(len(values))])
    for rows in range(2, len(values) + 1):
        assert torch.equal(products(level).multiply(packed, values[:rows]), alone[:rows])


def test_only_rows_and_columns_with_nan_get_nan(level: str) -> None:
    values, weights = random_values(40, 96, 2), random_weights(70, 96, 2)
    values[7, 95], weights[33, 0] = math.nan, math.inf
    result = products(level).multiply(pack_bf16(weights), values)
    finite = torch.ones(40, 70, dtype=torch.bool)
    finite[7], finite[:, 33] = False, False
    assert torch.equal(result.isfinite(), finite)
    assert result[7].isnan().all()


def at_the_end_of_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory behind which reading or writing ends the process."""
    size = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=size - tensor.nbytes)
    end = ctypes.c_void_p(copy.data_ptr() + tensor.nbytes)
    assert ctypes.CDLL(None).mprotect(end, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return copy.view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("rows", [1, 3, 15, 17, 33])
@pytest.mark.parametrize("n_in", [2, 30, 66, 258])
def test_nothing_behind_inputs_and_weights_is_read(level: str, rows: int, n_in: int) -> None:
    packed, values = pack_bf16(random_weights(40, n_in, 4)), random_values(rows, n_in, 4)
    at_the_end = dataclasses.replace(packed, weight=at_the_end_of_memory(packed.weight))
    actual = products(level).multiply(at_the_end, at_the_end_of_memory(values))
    assert torch.equal(actual, products(level).multiply(packed, values))


def test_exact_where_sums_are_small_integers(level: str) -> None:
    generator = np.random.default_rng(3)
    values = torch.from_numpy(generator.integers(-8, 9, (37, 130)).astype(np.float32)).bfloat16()
    weights = torch.from_numpy(generator.integers(-8, 9, (65, 130)).astype(np.float32)).bfloat16()
    assert torch.equal(
        products(level).multiply(pack_bf16(weights), values).double(), values.double() @ weights.double().T
    )
