"""int8 products: exact for their quantised values, close to the unquantised ones, the same alone and in a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear.packing_int8 import MAX_INPUTS, fits_int8, pack_int8, quantize_int8
from tests.kernels.products import LEVELS, assert_rows_close, products, random_values

pytestmark = pytest.mark.parametrize("level", LEVELS)

ROUNDING = 3e-7  # of float32, twice: the scales' product and its product with the sum


def random_weights(n_out: int, n_in: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.standard_normal((n_out, n_in)).astype(np.float32))


@settings(max_examples=40, deadline=None)
@given(
    n_out=st.integers(1, 100),
    fours=st.integers(1, 80),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
def test_sums_are_those_of_the_codes(level: str, n_out: int, fours: int, rows: int, seed: int, bias: bool) -> None:
    n_in = 4 * fours
    weights, values = random_weights(n_out, n_in, seed), random_values(rows, n_in, seed)
    added = torch.linspace(-1, 1, n_out) if bias else None
    packed = pack_int8(weights, added)
    quantized = products(level).quantize(packed, values)
    codes, scales = quantize_int8(weights)
    expected = (quantized.codes.double() - 128) @ codes.double().T
    expected *= quantized.scales.double().unsqueeze(1) * scales.double()
    if added is not None:
        expected += added.double()
    assert_rows_close(products(level).multiply(packed, values), expected, ROUNDING)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(2, 40), n_out=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_row_is_the_same_alone_and_among_others(level: str, rows: int, n_out: int, seed: int) -> None:
    packed, values = pack_int8(random_weights(n_out, 64, seed)), random_values(rows, 64, seed)
    together = products(level).multiply(packed, values)
    alone = torch.cat([products(level).multiply(packed, values[row : row + 1]) for row in range(rows)])
    assert torch.equal(together, alone)


@settings(max_examples=30, deadline=None)
@given(fours=st.integers(1, 60), rows=st.integers(1, 8), seed=st.integers(0, 99))
def test_inputs_become_the_nearest_codes(level: str, fours: int, rows: int, seed: int) -> None:
    values = random_values(rows, 4 * fours, seed)
    quantized = products(level).quantize(pack_int8(random_weights(1, 4 * fours, seed)), values)
    codes = quantized.codes.double() - 128
    assert codes.abs().max() <= 127
    scales = quantized.scales.double().unsqueeze(1)
    torch.testing.assert_close(scales.float(), values.float().abs().amax(dim=1, keepdim=True) / 127)
    assert bool(((codes * scales - values.double()).abs() <= 0.5001 * scales).all())


def test_weights_become_the_nearest_codes(level: str) -> None:
    weights = random_weights(50, 96, 1)
    codes, scales = quantize_int8(weights)
    error = (codes.double() * scales.double().unsqueeze(1) - weights.double()).abs()
    assert bool((error <= 0.5001 * scales.double().unsqueeze(1)).all())
    embedded = products(level).embed(pack_int8(weights), torch.arange(50, dtype=torch.int32))
    assert torch.equal(embedded, codes * scales.unsqueeze(1))


def test_the_product_is_close_to_that_of_the_unquantised(level: str) -> None:
    weights, values = random_weights(200, 512, 2), random_values(9, 512, 2)
    expected = values.double() @ weights.double().T
    error = products(level).multiply(pack_int8(weights), values).double() - expected
    assert error.norm() / expected.norm() < 0.015


def test_the_largest_sums_do_not_overflow(level: str) -> None:
    values = torch.ones(2, MAX_INPUTS, dtype=torch.bfloat16)
    values[1] = -1
    sums = products(level).multiply(pack_int8(torch.ones(3, MAX_INPUTS)), values)
    torch.testing.assert_close(sums, torch.tensor([[1.0], [-1.0]]).expand(2, 3) * MAX_INPUTS)
    assert not fits_int8(MAX_INPUTS + 4)
    assert not fits_int8(6)
    with pytest.raises(ValueError, match="multiple of 4 inputs"):
        pack_int8(torch.ones(2, 6))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_nan_alone(level: str, bad: float) -> None:
    values = random_values(5, 36, 3)
    values[2, 35] = bad
    sums = products(level).multiply(pack_int8(random_weights(33, 36, 3)), values)
    assert sums[2].isnan().all()
    assert sums[[0, 1, 3, 4]].isfinite().all()


def test_zeros_give_zeros(level: str) -> None:
    values = torch.zeros(3, 40, dtype=torch.bfloat16)
    values[1] = 1e-38
    weights = random_weights(5, 40, 4)
    weights[3] = 0
    assert not products(level).multiply(pack_int8(weights), values).any()
    assert not products(level).multiply(pack_int8(weights), random_values(3, 40, 4))[:, 3].any()
