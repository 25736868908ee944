"""Parts of quantised matrices: what they mean is that part of what the whole one means, whatever is cut where."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.quant_matmul.layout import PackedWeights, pack_uneven_int4
from shared.quantization.cut import Index, take_inputs, take_outputs
from shared.quantization.matrix import GroupedMatrix, QuantisedMatrix
from tests.quantization.matrices import grouped, scaled

N_OUT, N_IN = 48, 512
MATRICES: dict[str, QuantisedMatrix] = {
    **{f"int4, groups of {size}": grouped(N_OUT, N_IN, size) for size in (32, 64, 128)},
    **{f"int4, groups of {size} anywhere": grouped(N_OUT, N_IN, size, desc_act=True) for size in (32, 64, 128)},
    "int8": scaled(N_OUT, N_IN, torch.int8),
    "fp8": scaled(N_OUT, N_IN, torch.float8_e4m3fn),
}
MakeCuts = Callable[[int, int], list[Index]]
every_matrix = pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)


def cuts(count: int, size: int) -> list[Index]:
    return [slice(rank * count // size, (rank + 1) * count // size) for rank in range(size)]


def shuffled_cuts(count: int, size: int) -> list[Index]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(size))
    return [order[index] for index in cuts(count, size)]


@every_matrix
@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("make_cuts", [cuts, shuffled_cuts])
def test_outputs(matrix: QuantisedMatrix, size: int, make_cuts: MakeCuts) -> None:
    for index in make_cuts(N_OUT, size):
        assert torch.equal(take_outputs(matrix, index).dequantise(), matrix.dequantise()[index])


@every_matrix
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16])  # 3 and 7 cut groups and chunks in two
@pytest.mark.parametrize("make_cuts", [cuts, shuffled_cuts])
def test_products_with_parts_of_the_inputs_add_up(matrix: QuantisedMatrix, size: int, make_cuts: MakeCuts) -> None:
    indices = make_cuts(N_IN, size)
    parts = [take_inputs(matrix, index).dequantise() for index in indices]
    whole = matrix.dequantise()
    assert torch.equal(torch.cat(parts, dim=1), torch.cat([whole[:, index] for index in indices], dim=1))
    x = torch.randn((3, N_IN), generator=torch.Generator().manual_seed(1)).double()
    total = sum(x[:, index] @ part.double().t() for index, part in zip(indices, parts, strict=True))
    torch.testing.assert_close(total, x @ whole.double().t(), rtol=1e-12, atol=1e-12)


@every_matrix
def test_a_part_keeps_no_memory_of_the_whole(matrix: QuantisedMatrix) -> None:
    for part in (take_outputs(matrix, slice(8, 16)), take_inputs(matrix, slice(32, 64))):
        names = ("codes", "zeros", "scales") if isinstance(part, GroupedMatrix) else ("values",)
        for name in names:
            tensor: Tensor = getattr(part, name)
            assert tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes, name


def test_groups_of_which_nothing_is_kept_go() -> None:
    part = take_inputs(grouped(N_OUT, N_IN, 64), slice(100, 200))
    assert isinstance(part, GroupedMatrix)
    assert part.scales.shape == part.zeros.shape == (N_OUT, 3)
    assert part.group_of.tolist() == [0] * 28 + [1] * 64 + [2] * 8


def packed(matrix: QuantisedMatrix) -> PackedWeights:
    assert isinstance(matrix, GroupedMatrix)
    return pack_uneven_int4(matrix.codes, matrix.scales, matrix.zeros, matrix.group_of)


@pytest.mark.parametrize(
    ("group_size", "index", "expected"),
    [
        (128, slice(0, 256), (128, 256)),
        (128, slice(256, 512), (128, 256)),
        (128, slice(64, 256), (64, 192)),  # a group loses half
        (128, slice(96, 192), (32, 96)),
        (64, slice(96, 192), (32, 96)),
        (64, slice(64, 192), (64, 128)),
        (32, slice(32, 64), (32, 32)),
    ],
)
def test_groups_that_are_cut_become_finer(group_size: int, index: slice, expected: tuple[int, int]) -> None:
    """The largest groups that a chunk of 32 inputs allows, and no weight more than there was."""
    weights = packed(take_inputs(grouped(N_OUT, N_IN, group_size), index))
    assert (weights.group_size, weights.num_inputs) == expected
    assert weights.order is None


def test_groups_whose_rest_fills_no_chunk_are_filled_up() -> None:
    weights = packed(take_inputs(grouped(N_OUT, N_IN, 64), slice(100, 200)))
    assert (weights.group_size, weights.num_inputs) == (32, 32 + 64 + 32)
    assert weights.order is not None
    order = weights.order.tolist()
    assert order[:28] + order[32 : 32 + 64 + 8] == list(range(100))
    assert set(order[28:32] + order[-24:]) == {0}


def test_more_filling_than_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="32 inputs would be filled up to 512"):
        packed(take_inputs(grouped(N_OUT, N_IN, 32), slice(0, N_IN, 16)))
