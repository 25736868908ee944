"""What products with quantised weights must be, wherever their kernels are loaded.

The checks with shapes are the tests'; those without are for sanitizers and planted bugs (see emulator/sanitized.py).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cuda.module import LoadKernels
from kernels.quant_matmul import reference
from kernels.quant_matmul.cuda import QuantMatmul, Workspace
from kernels.quant_matmul.layout import PackedWeights, pack_8_bits, pack_int4
from tests.quantization.matrices import grouped, scaled

Floats = NDArray[np.float64]
CPU = torch.device("cpu")
BF16, FP16 = torch.bfloat16, torch.float16
INT8, FP8 = torch.int8, torch.float8_e4m3fn

# Of the one rounding of a result: half a unit in its last place, by its own size.
ROUNDING = {BF16: 2.0**-8, FP16: 2.0**-11}


def int4_case(n: int, k: int, group_size: int, *, desc_act: bool = False) -> tuple[PackedWeights, Floats]:
    """Packed weights, and what they mean."""
    matrix = grouped(n, k, group_size, desc_act=desc_act)
    exact = reference.int4_weights(
        matrix.codes.numpy(), matrix.scales.double().numpy(), matrix.zeros.numpy(), matrix.group_of.numpy()
    )
    return pack_int4(matrix.codes, matrix.scales, matrix.zeros, matrix.group_of), exact


def scaled_case(n: int, k: int, dtype: torch.dtype) -> tuple[PackedWeights, Floats]:
    matrix = scaled(n, k, dtype)
    exact = reference.scaled_weights(matrix.values.double().numpy(), matrix.scales.double().numpy())
    return pack_8_bits(matrix.values, matrix.scales), exact


def check_product(
    load: LoadKernels,
    case: tuple[PackedWeights, Floats],
    rows: int,
    dtype: torch.dtype,
    *,
    num_processors: int = 4,
    with_bias: bool = False,
) -> None:
    """The product of random rows, twice, since the first may leave something behind."""
    weights, exact = case
    n, k = exact.shape
    random = np.random.default_rng(rows)
    x = torch.from_numpy(random.standard_normal((rows, k)).astype(np.float32)).to(dtype)
    bias = torch.from_numpy(random.standard_normal(n).astype(np.float32)).to(dtype) if with_bias else None
    workspace = Workspace(dtype, num_processors, CPU, rows, k)
    workspace.found.fill_(float("nan"))
    product = QuantMatmul(load, dtype, weights.encoding)
    outs = [torch.full((rows, n), float("nan"), dtype=dtype) for _ in range(2)]
    for out in outs:
        product(out, x, weights, workspace, bias)
    assert torch.equal(outs[0], outs[1])
    expected = reference.quant_matmul(x.double().numpy(), exact, None if bias is None else bias.double().numpy())
    size = np.abs(x.double().numpy()) @ np.abs(exact).T  # of what is summed up
    bound = np.abs(expected) * ROUNDING[dtype] + size * 1e-6
    assert (np.abs(outs[0].double().numpy() - expected) <= bound).all()
    assert not workspace.arrived.any()


# ---- of shapes that reach every part of the kernels ------------------------------------------------------------------


def int4_few_rows(load: LoadKernels) -> None:
    """More chunks than are under way, half a block of columns, rows of both halves of sixteen."""
    check_product(load, int4_case(72, 768, 32), 11, BF16, num_processors=1, with_bias=True)


def int4_few_rows_split(load: LoadKernels) -> None:
    check_product(load, int4_case(40, 256, 64), 3, FP16, num_processors=4)


def int4_many_rows(load: LoadKernels) -> None:
    """Two blocks of rows, the second one with few; an odd number of chunks."""
    check_product(load, int4_case(72, 224, 32), 70, FP16, num_processors=1, with_bias=True)


def int4_many_rows_split(load: LoadKernels) -> None:
    check_product(load, int4_case(40, 384, 128), 17, BF16, num_processors=3)


def int4_in_another_order(load: LoadKernels) -> None:
    check_product(load, int4_case(16, 256, 64, desc_act=True), 3, BF16)


def int8_weights(load: LoadKernels) -> None:
    check_product(load, scaled_case(40, 160, INT8), 5, BF16, with_bias=True)
    check_product(load, scaled_case(40, 160, INT8), 20, BF16)


def int8_weights_in_float16(load: LoadKernels) -> None:
    check_product(load, scaled_case(40, 160, INT8), 5, FP16)


def fp8_weights(load: LoadKernels) -> None:
    check_product(load, scaled_case(40, 160, FP8), 5, BF16)
    check_product(load, scaled_case(40, 160, FP8), 20, BF16)


CHECKS = (
    int4_few_rows,
    int4_few_rows_split,
    int4_many_rows,
    int4_many_rows_split,
    int4_in_another_order,
    int8_weights,
    int8_weights_in_float16,
    fp8_weights,
)
