"""int8 products: exact for their quantised values, close to the unquantised ones, the same alone and in a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear.packing import PackedLinear
from kernels.linear.packing_int8 import GROUP, fits_int8, pack_int8, quantize_int8
from tests.kernels.products import LEVELS, assert_within, products, random_values

pytestmark = pytest.mark.parametrize("level", LEVELS)

ROUNDING = 1e-6  # of float32 sums over some groups, which may cancel


def random_weights(n_out: int, n_in: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.standard_normal((n_out, n_in)).astype(np.float32))


def quantised_inputs(level: str, packed: PackedLinear, values: torch.Tensor) -> torch.Tensor:
    """float64: what the products see of the values."""
    quantized = products(level).quantize(packed, values)
    codes = quantized.codes.double().view(len(values), -1, GROUP)
    assert codes.abs().max() <= 127
    assert torch.equal(codes.sum(dim=2), quantized.sums.double())
    return (codes * quantized.scales.double().unsqueeze(2)).view(len(values), -1)


@settings(max_examples=40, deadline=None)
@given(
    n_out=st.integers(1, 100),
    groups=st.integers(1, 6),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
def test_sums_are_those_of_the_codes(level: str, n_out: int, groups: int, rows: int, seed: int, bias: bool) -> None:
    n_in = GROUP * groups
    weights, values = random_weights(n_out, n_in, seed), random_values(rows, n_in, seed)
    added = torch.linspace(-1, 1, n_out) if bias else None
    packed = pack_int8(weights, added)
    codes, scales = quantize_int8(weights)
    inputs, rounded = quantised_inputs(level, packed, values), codes.double() * scales.double().unsqueeze(1)
    expected = inputs @ rounded.T
    magnitudes = inputs.abs() @ rounded.abs().T
    if added is not None:
        expected += added.double()
        magnitudes += added.double().abs()
    assert_within(products(level).multiply(packed, values), expected, ROUNDING * magnitudes)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(2, 40), n_out=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_row_is_the_same_alone_and_among_others(level: str, rows: int, n_out: int, seed: int) -> None:
    packed, values = pack_int8(random_weights(n_out, 64, seed)), random_values(rows, 64, seed)
    together = products(level).multiply(packed, values)
    alone = torch.cat([products(level).multiply(packed, values[row : row + 1]) for row in range(rows)])
    assert torch.equal(together, alone)


@settings(max_examples=30, deadline=None)
@given(groups=st.integers(1, 6), rows=st.integers(1, 8), seed=st.integers(0, 99))
def test_inputs_become_the_nearest_codes(level: str, groups: int, rows: int, seed: int) -> None:
    values = random_values(rows, GROUP * groups, seed)
    packed = pack_int8(random_weights(1, GROUP * groups, seed))
    scales = products(level).quantize(packed, values).scales
    grouped = values.float().view(rows, groups, GROUP)
    torch.testing.assert_close(scales, grouped.abs().amax(dim=2) / 127)
    error = (quantised_inputs(level, packed, values).view(grouped.shape) - grouped.double()).abs()
    assert bool((error <= 0.5001 * scales.double().unsqueeze(2)).all())


def test_weights_become_the_nearest_codes(level: str) -> None:
    weights = random_weights(50, 192, 1)
    codes, scales = quantize_int8(weights)
    error = (codes.double() * scales.double().unsqueeze(1) - weights.double()).abs()
    assert bool((error <= 0.5001 * scales.double().unsqueeze(1)).all())
    embedded = products(level).embed(pack_int8(weights), torch.arange(50, dtype=torch.int32))
    assert torch.equal(embedded, codes * scales.unsqueeze(1))


def test_the_product_is_close_to_that_of_the_unquantised(level: str) -> None:
    weights, values = random_weights(200, 512, 2), random_values(9, 512, 2)
    expected = values.double() @ weights.double().T
    error = products(level).multiply(pack_int8(weights), values).double() - expected
    assert error.norm() / expected.norm() < 0.012


def test_the_largest_sums_are_exact(level: str) -> None:
    values = torch.ones(2, 8192, dtype=torch.bfloat16)
    values[1] = -1
    sums = products(level).multiply(pack_int8(torch.full((3, 8192), -1.0)), values)
    torch.testing.assert_close(sums, torch.tensor([[-8192.0], [8192.0]]).expand(2, 3))


def test_other_widths_are_refused(level: str) -> None:
    assert fits_int8(576)
    assert not fits_int8(96)
    with pytest.raises(ValueError, match="multiple of 64 inputs, not 96"):
        pack_int8(torch.ones(2, 96))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_nan_alone(level: str, bad: float) -> None:
    values = random_values(5, 128, 3)
    values[2, 127] = bad
    sums = products(level).multiply(pack_int8(random_weights(33, 128, 3)), values)
    assert sums[2].isnan().all()
    assert sums[[0, 1, 3, 4]].isfinite().all()


def test_zeros_give_zeros(level: str) -> None:
    values = torch.zeros(3, 64, dtype=torch.bfloat16)
    values[1] = 1e-38
    weights = random_weights(5, 64, 4)
    weights[3] = 0
    assert not products(level).multiply(pack_int8(weights), values).any()
    assert not products(level).multiply(pack_int8(weights), random_values(3, 64, 4))[:, 3].any()
