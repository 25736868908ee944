"""Shuffles and votes in the emulator, against what the PTX manual says of shfl.sync and vote.sync."""

import numpy as np
import pytest
import torch

from tests.kernels.emulator import probes
from tests.kernels.emulator.module import SCHEDULES, EmulatedModule, Schedule

INDEXED, XOR, DOWN, UP = range(4)
LANES = np.arange(32)


@pytest.fixture(params=SCHEDULES, ids=str)
def module(request: pytest.FixtureRequest) -> EmulatedModule:
    schedule: Schedule = request.param
    return probes.load("lanes", schedule)


def source_of(kind: int, lane: int, operand: int, width: int) -> int:
    """The lane that `lane` reads from: the manual's pseudo-code, with the segment mask and clamp that CUDA gives it."""
    clamp, segments = (0 if kind == UP else 31), 32 - width
    last = (lane & segments) | (clamp & ~segments)
    operand &= 31
    if kind == UP:
        return lane - operand if lane - operand >= last else lane
    if kind == DOWN:
        return lane + operand if lane + operand <= last else lane
    if kind == XOR:
        return lane ^ operand if lane ^ operand <= last else lane
    return (lane & segments) | (operand & ~segments)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_shuffles(module: EmulatedModule, kind: int, width: int) -> None:
    rng = np.random.default_rng(width)
    uniform = [np.full(32, operand, dtype=np.int32) for operand in (0, 1, 2, 7, 8, 16, 31, 33)]
    own = [rng.integers(0, 64, 32).astype(np.int32) for _ in range(3)]
    values = torch.from_numpy(rng.integers(-(2**31), 2**31, 32).astype(np.int32))
    for operands in (*uniform, *own):
        out = torch.zeros(32, dtype=torch.int32)
        arguments = (out, values, torch.from_numpy(operands), np.int32(width))
        module.launch(f"tokenbus::shuffled<int, {kind}>", (1, 1, 1), (32, 1, 1), arguments)
        sources = [
            source_of(kind, int(lane), int(operand), width) for lane, operand in zip(LANES, operands, strict=True)
        ]
        assert out.tolist() == values[sources].tolist()


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("value", ["float", "double"])
def test_shuffles_of_wider_values(module: EmulatedModule, kind: int, value: str) -> None:
    dtype = torch.float32 if value == "float" else torch.float64
    values = torch.from_numpy(np.random.default_rng(1).standard_normal(32)).to(dtype)
    out, operands = torch.zeros(32, dtype=dtype), torch.full((32,), 3, dtype=torch.int32)
    arguments = (out, values, operands, np.int32(16))
    module.launch(f"tokenbus::shuffled<{value}, {kind}>", (1, 1, 1), (32, 1, 1), arguments)
    assert out.tolist() == values[[source_of(kind, int(lane), 3, 16) for lane in LANES]].tolist()


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x0000FFFF, 0x80000001, 0x12345678])
@pytest.mark.parametrize("predicates", ["none", "some", "all"])
def test_votes_count_the_lanes_of_the_mask(module: EmulatedModule, mask: int, predicates: str) -> None:
    rng = np.random.default_rng(2)
    own = {"none": np.zeros(32), "some": rng.integers(0, 3, 32), "all": rng.integers(1, 9, 32)}[predicates]
    out = torch.full((32, 3), -7, dtype=torch.int32)
    arguments = (out, torch.from_numpy(own.astype(np.int32)), np.uint32(mask))
    module.launch("tokenbus::votes", (1, 1, 1), (32, 1, 1), arguments)
    ballot = sum(1 << int(lane) for lane in LANES if mask >> lane & 1 and own[lane])
    signed = int(np.uint32(ballot).astype(np.int32))
    for lane in LANES:
        expected = [signed, int(ballot != 0), int(ballot == mask)] if mask >> lane & 1 else [-7] * 3
        assert out[lane].tolist() == expected


def test_halves_of_a_warp_meet_among_themselves(module: EmulatedModule) -> None:
    sums = torch.zeros(96, dtype=torch.int32)
    module.launch("tokenbus::sums_of_halves", (1, 1, 1), (96, 1, 1), (sums,))
    assert sums.tolist() == np.repeat(np.arange(96).reshape(6, 16).sum(axis=1), 16).tolist()


def test_what_a_lane_outside_the_mask_has_is_no_value(module: EmulatedModule) -> None:
    out = torch.zeros(16, dtype=torch.int32)
    module.launch("tokenbus::from_outside", (1, 1, 1), (32, 1, 1), (out,))
    assert out.tolist() == [-1] * 16
