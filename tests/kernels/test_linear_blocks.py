"""Products with the blocks of GGUF files: no bit of a weight is lost, sums are exact up to float32's rounding."""

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear.packing import gate_up_order
from kernels.linear.packing_blocks import (
    EIGHT_BIT_TYPES,
    FOUR_BIT_TYPES,
    RawBlocks,
    can_pack,
    pack_blocks,
    quantize_q8_0,
)
from tests.gguf_blocks import random_blocks
from tests.kernels.products import LEVELS, assert_within, products, random_values

pytestmark = pytest.mark.parametrize("level", LEVELS)

KINDS = [*FOUR_BIT_TYPES, *EIGHT_BIT_TYPES]
ROUNDING = 24 * 2.0**-24  # of float32 sums over up to 24 blocks


def blocks_of(kind: str, n_out: int, n_in: int, seed: int) -> RawBlocks:
    return RawBlocks(kind, random_blocks(GGMLQuantizationType[kind], n_out, n_in, seed))


def weights_of(blocks: RawBlocks) -> torch.Tensor:
    """float32, by the gguf package."""
    return torch.from_numpy(np.asarray(dequantize(blocks.data, GGMLQuantizationType[blocks.type])))


def inputs_of(kind: str, units: int) -> int:
    return units * (256 if kind == "Q4_K" else 32)


def quantised_inputs(level: str, packed: Any, values: torch.Tensor) -> torch.Tensor:
    """float64: what the products see of the values."""
    quantized = products(level).quantize(packed, values)
    codes = quantized.codes.double().view(len(values), -1, 32)
    assert torch.equal(codes.sum(dim=2), quantized.sums.double())
    return (codes * quantized.scales.double().unsqueeze(2)).view(len(values), -1)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS), n_out=st.integers(1, 80), units=st.integers(1, 3), rows=st.integers(1, 40),
    seed=st.integers(0, 99), bias=st.booleans(),
)  # fmt: skip
def test_sums_are_those_of_the_codes(
    level: str, kind: str, n_out: int, units: int, rows: int, seed: int, bias: bool
) -> None:
    n_in = inputs_of(kind, units)
    blocks, values = blocks_of(kind, n_out, n_in, seed), random_values(rows, n_in, seed)
    added = torch.linspace(-1, 1, n_out) if bias else None
    packed = pack_blocks([blocks], bias=added)
    inputs, weights = quantised_inputs(level, packed, values), weights_of(blocks).double()
    expected = inputs @ weights.T
    magnitudes = magnitudes_of(inputs, weights)
    if added is not None:
        expected += added.double()
        magnitudes = magnitudes + added.double().abs()
    assert_within(products(level).multiply(packed, values), expected, ROUNDING * magnitudes)


def magnitudes_of(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """float64 [rows, n_out]: what float32's rounding is relative to, results may cancel to nothing. A block's codes
    and its least weight are summed apart, and each of the two may be as large as the block's largest weight, twice."""
    largest = weights.abs().view(len(weights), -1, 32).amax(dim=2)
    return 4 * inputs.abs().view(len(inputs), -1, 32).sum(dim=2) @ largest.T


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(KINDS), n_out=st.integers(1, 80), units=st.integers(1, 3), seed=st.integers(0, 99))
def test_not_a_bit_of_a_weight_is_lost(level: str, kind: str, n_out: int, units: int, seed: int) -> None:
    blocks = blocks_of(kind, n_out, inputs_of(kind, units), seed)
    embedded = products(level).embed(pack_blocks([blocks]), torch.arange(n_out, dtype=torch.int32))
    assert torch.equal(embedded, weights_of(blocks))


@settings(max_examples=20, deadline=None)
@given(kind=st.sampled_from(KINDS), rows=st.integers(2, 40), n_out=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_row_is_the_same_alone_and_among_others(level: str, kind: str, rows: int, n_out: int, seed: int) -> None:
    n_in = inputs_of(kind, 2)
    packed, values = pack_blocks([blocks_of(kind, n_out, n_in, seed)]), random_values(rows, n_in, seed)
    together = products(level).multiply(packed, values)
    alone = torch.cat([products(level).multiply(packed, values[row : row + 1]) for row in range(rows)])
    assert torch.equal(together, alone)


@settings(max_examples=20, deadline=None)
@given(blocks=st.integers(1, 12), rows=st.integers(1, 8), seed=st.integers(0, 99))
def test_inputs_become_the_nearest_codes(level: str, blocks: int, rows: int, seed: int) -> None:
    values = random_values(rows, 32 * blocks, seed)
    packed = pack_blocks([blocks_of("Q4_1", 1, 32 * blocks, seed)])
    scales = products(level).quantize(packed, values).scales.double().unsqueeze(2)
    error = (quantised_inputs(level, packed, values) - values.double()).abs().view(rows, blocks, 32)
    assert bool((error <= 0.5001 * scales).all())


@pytest.mark.parametrize("kinds", [("Q4_1", "Q4_0", "Q4_1"), ("Q4_K", "Q4_1", "Q4_0"), ("Q8_0", "Q8_0")])
def test_tensors_are_stacked_and_reordered(level: str, kinds: tuple[str, ...]) -> None:
    parts = [blocks_of(kind, 32, 256, seed) for seed, kind in enumerate(kinds)]
    order = torch.from_numpy(np.random.default_rng(5).permutation(32 * len(kinds)))
    bias = torch.arange(32.0 * len(kinds))
    packed = pack_blocks(parts, order, bias)
    embedded = products(level).embed(packed, torch.arange(len(order), dtype=torch.int32))
    assert torch.equal(embedded, torch.cat([weights_of(part) for part in parts])[order])
    assert torch.equal(products(level).multiply(packed, torch.zeros(1, 256, dtype=torch.bfloat16))[0], bias)


def test_gates_lie_beside_their_ups(level: str) -> None:
    gate, up = (blocks_of("Q4_1", 48, 64, seed) for seed in (1, 2))
    packed = pack_blocks([gate, up], gate_up_order(48))
    embedded = products(level).embed(packed, torch.arange(96, dtype=torch.int32)).view(3, 2, 16, 64)
    assert torch.equal(embedded[:, 0].reshape(48, 64), weights_of(gate))
    assert torch.equal(embedded[:, 1].reshape(48, 64), weights_of(up))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_the_product_is_close_to_that_of_the_unquantised(level: str, kind: str) -> None:
    weights = np.random.default_rng(6).standard_normal((200, 512)).astype(np.float32)
    packed = pack_blocks([RawBlocks(kind, quantize(weights, GGMLQuantizationType[kind]))])
    values = random_values(9, 512, 6)
    expected = values.double() @ torch.from_numpy(weights).double().T
    error = products(level).multiply(packed, values).double() - expected
    assert error.norm() / expected.norm() < (0.01 if kind == "Q8_0" else 0.12)


def test_q8_0_is_as_near_as_the_gguf_package_comes(level: str) -> None:
    weights = np.random.default_rng(7).standard_normal((40, 96)).astype(np.float32)
    weights[3, 32:64] = 0
    ours = weights_of(quantize_q8_0(torch.from_numpy(weights))).numpy()
    theirs = weights_of(RawBlocks("Q8_0", np.asarray(quantize(weights, GGMLQuantizationType["Q8_0"])))).numpy()
    largest = np.abs(weights).reshape(40, 3, 32).max(axis=2, keepdims=True).repeat(32, axis=2).reshape(40, 96)
    assert np.all(np.abs(ours - weights) <= largest * (0.5 / 127 + 2**-10))
    assert np.linalg.norm(ours - weights) <= 1.01 * np.linalg.norm(theirs - weights)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_finite_is_nan_alone(level: str, kind: str, bad: float) -> None:
    n_in = inputs_of(kind, 2)
    values = random_values(5, n_in, 3)
    values[2, n_in - 1] = bad
    sums = products(level).multiply(pack_blocks([blocks_of(kind, 33, n_in, 3)]), values)
    assert sums[2].isnan().all()
    assert sums[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_give_zeros(level: str, kind: str) -> None:
    values = torch.zeros(2, 256, dtype=torch.bfloat16)
    values[1] = 1e-38
    assert not products(level).multiply(pack_blocks([blocks_of(kind, 5, 256, 4)]), values).any()


def test_types_that_do_not_go_together_are_refused(level: str) -> None:
    assert can_pack(["Q4_0", "Q4_K"])
    assert not can_pack(["Q4_1", "Q8_0"])
    assert not can_pack(["Q6_K"])
    with pytest.raises(ValueError, match="Q4_1, Q8_0 do not make one matrix"):
        pack_blocks([blocks_of("Q4_1", 2, 32, 1), blocks_of("Q8_0", 2, 32, 1)])
