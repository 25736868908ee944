"""Weights in one piece of memory: equal, aligned, none over another's, and no more than there is room for."""

import pytest
import torch

from kernels.linear.arena import WeightArena, room_for
from kernels.linear.packing import PackedLinear, pack_bf16
from kernels.linear.packing_int8 import pack_int8

SHAPES = [(32, 64), (33, 64), (960, 128), (1, 256), (100, 64)]


def packed_matrices() -> list[PackedLinear]:
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [pack(weight) for weight in weights for pack in (pack_bf16, pack_int8)]


def test_placed_weights_are_equal_and_apart() -> None:
    matrices = packed_matrices()
    arena = WeightArena(sum(room_for(matrix.n_out, matrix.n_in) for matrix in matrices))
    placed = [arena.place(matrix) for matrix in matrices]
    end = 0
    for before, after in zip(matrices, placed, strict=True):
        assert torch.equal(before.weight, after.weight)
        assert (before.encoding, before.n_out, before.n_in) == (after.encoding, after.n_out, after.n_in)
        assert after.weight.data_ptr() % 64 == 0
        assert after.weight.data_ptr() >= end
        end = after.weight.data_ptr() + after.weight.numel() * after.weight.element_size()


def test_a_full_arena_says_so() -> None:
    matrix = pack_bf16(torch.ones(32, 64))
    arena = WeightArena(room_for(32, 64))
    arena.place(matrix)
    with pytest.raises(ValueError, match="do not fit"):
        arena.place(matrix)
