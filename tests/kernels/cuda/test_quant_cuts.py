"""Products with the parts of a quantised matrix, in the emulator: put together they are the whole's."""

import pytest
import torch
from torch import Tensor

from kernels.quant_matmul.cuda import QuantMatmul, Workspace
from kernels.quant_matmul.layout import PackedWeights
from services.worker.models.quantised import pack_fused
from shared.quantization.cut import Index, take_inputs, take_outputs
from shared.quantization.matrix import QuantisedMatrix
from tests.kernels.cuda.quant_checks import BF16, CPU, FP8, FP16, INT8, ROUNDING
from tests.kernels.emulator.module import load_emulated
from tests.quantization.matrices import grouped, scaled

N_OUT, N_IN = 48, 384
MATRICES: dict[str, QuantisedMatrix] = {
    **{f"int4, groups of {size}": grouped(N_OUT, N_IN, size) for size in (32, 64, 128)},
    **{f"int4, groups of {size} anywhere": grouped(N_OUT, N_IN, size, desc_act=True) for size in (32, 64, 128)},
    "int8": scaled(N_OUT, N_IN, INT8),
    "fp8": scaled(N_OUT, N_IN, FP8),
}
every_matrix = pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
numbers_of_rows = pytest.mark.parametrize("rows", [3, 20])  # of both kernels


def product(x: Tensor, matrix: QuantisedMatrix) -> tuple[Tensor, PackedWeights]:
    weights = pack_fused([matrix])
    assert weights is not None
    most_inputs = weights.num_inputs if weights.order is not None else 0
    workspace = Workspace(x.dtype, 4, CPU, len(x) if most_inputs else 0, most_inputs)
    workspace.taken.fill_(float("nan"))
    out = torch.full((len(x), weights.num_columns), float("nan"), dtype=x.dtype)
    QuantMatmul(load_emulated(), x.dtype, weights.encoding)(out, x.contiguous(), weights, workspace)
    return out.double(), weights


def random_rows(rows: int, dtype: torch.dtype) -> Tensor:
    return torch.randn((rows, N_IN), generator=torch.Generator().manual_seed(rows)).to(dtype)


def bound(x: Tensor, weights: Tensor) -> Tensor:
    """See quant_checks.check_product."""
    return (x.double() @ weights.t()).abs() * ROUNDING[x.dtype] + x.double().abs() @ weights.abs().t() * 1e-6


@every_matrix
@numbers_of_rows
def test_outputs_of_parts_are_those_of_the_whole(matrix: QuantisedMatrix, rows: int) -> None:
    x = random_rows(rows, FP16)
    parts = [product(x, take_outputs(matrix, slice(first, first + 24)))[0] for first in (0, 24)]
    exact = matrix.dequantise().double()
    assert ((torch.cat(parts, dim=1) - x.double() @ exact.t()).abs() <= bound(x, exact)).all()


def halves(cut_at: int) -> tuple[Index, Index]:
    return slice(0, cut_at), slice(cut_at, N_IN)


@every_matrix
@numbers_of_rows
@pytest.mark.parametrize("cut_at", [192, 224])
def test_products_with_parts_of_the_inputs_add_up(matrix: QuantisedMatrix, rows: int, cut_at: int) -> None:
    """Through whole groups, or their middle; groups that lie anywhere lose inputs to either part."""
    x, exact = random_rows(rows, BF16), matrix.dequantise().double()
    total, allowed = torch.zeros((rows, N_OUT), dtype=torch.float64), torch.zeros((rows, N_OUT), dtype=torch.float64)
    for index in halves(cut_at):
        out, _ = product(x[:, index], take_inputs(matrix, index))
        total += out
        allowed += bound(x[:, index], exact[:, index])
    assert ((total - x.double() @ exact.t()).abs() <= allowed).all()


@numbers_of_rows
def test_groups_that_are_filled_up_add_nothing(rows: int) -> None:
    """Not even where an input is large: a weight that fills up is exactly zero."""
    matrix = grouped(N_OUT, N_IN, 128, desc_act=True)
    x = random_rows(rows, BF16)
    x[:, 0] *= 2.0**60  # the one that these weights multiply
    index = slice(0, 128)
    out, weights = product(x[:, index], take_inputs(matrix, index))
    assert weights.num_inputs > 128
    exact = matrix.dequantise().double()[:, index]
    assert ((out - x[:, index].double() @ exact.t()).abs() <= bound(x[:, index], exact)).all()
