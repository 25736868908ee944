"""Products with quantised weights: the CUDA kernels in the emulator, against float64."""

import pytest
import torch

from kernels.quant_matmul.cuda import (
    FEW,
    MANY,
    SOURCE,
    TAKE_INPUTS,
    QuantMatmul,
    Shape,
    Workspace,
    few_instance,
    many_instance,
)
from kernels.quant_matmul.layout import CHUNK, pack_8_bits, pack_int4
from tests.kernels.cuda.quant_checks import BF16, CPU, FP8, FP16, INT8, check_product, int4_case, scaled_case
from tests.kernels.emulator.module import SCHEDULES, Schedule, load_emulated
from tests.quantization.matrices import grouped


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    found: Schedule = request.param
    return found


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 70])
def test_int4(schedule: Schedule, dtype: torch.dtype, rows: int) -> None:
    check_product(load_emulated(schedule), int4_case(160, 256, 32), rows, dtype)


@pytest.mark.parametrize("values", [INT8, FP8], ids=str)
@pytest.mark.parametrize("rows", [3, 33])
def test_8_bits(schedule: Schedule, values: torch.dtype, rows: int) -> None:
    check_product(load_emulated(schedule), scaled_case(160, 160, values), rows, BF16, with_bias=True)


@pytest.mark.parametrize("values", [INT8, FP8], ids=str)
@pytest.mark.parametrize("rows", [3, 33])
def test_8_bits_in_float16(values: torch.dtype, rows: int) -> None:
    check_product(load_emulated(), scaled_case(64, 96, values), rows, FP16)


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("rows", [2, 20])
def test_groups(group_size: int, desc_act: bool, rows: int) -> None:
    check_product(load_emulated(), int4_case(64, 384, group_size, desc_act=desc_act), rows, BF16, with_bias=True)


@pytest.mark.parametrize("n", [8, 24, 40, 136, 264])
@pytest.mark.parametrize("rows", [1, 18])
def test_columns_that_fill_no_block(n: int, rows: int) -> None:
    check_product(load_emulated(), int4_case(n, 128, 64), rows, BF16)


@pytest.mark.parametrize("num_processors", [1, 2, 7, 132])
@pytest.mark.parametrize("rows", [5, 65])
def test_splits(num_processors: int, rows: int) -> None:
    """However many multiprocessors there are, down to a group a warp."""
    check_product(load_emulated(SCHEDULES[2]), int4_case(40, 288, 32), rows, FP16, num_processors=num_processors)


def test_every_code_and_zero_is_exact() -> None:
    """An input of 1 alone: the result is one weight, rounded once."""
    n, k = 256, 32
    codes = torch.arange(16, dtype=torch.uint8).repeat(n // 16)[:, None].expand(n, k).contiguous()
    zeros = torch.arange(16, dtype=torch.uint8).repeat_interleave(n // 16)[:, None]
    weights = pack_int4(codes, torch.full((n, 1), 0.25), zeros, torch.zeros(k, dtype=torch.int64))
    for dtype in (BF16, FP16):
        for rows in (k // 2, k):
            out = torch.empty((rows, n), dtype=dtype)
            product = QuantMatmul(load_emulated(), dtype, "int4")
            product(out, torch.eye(k, dtype=dtype)[:rows], weights, Workspace(dtype, 1, CPU))
            expected = (codes[:, 0].float() - zeros[:, 0].float()) * 0.25
            assert torch.equal(out.float(), expected.expand(rows, n))


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("values", [INT8, FP8], ids=str)
def test_every_byte_is_exact(values: torch.dtype, dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 32).contiguous().view(values)
    if values == FP8:
        codes = torch.where(codes.float().isnan(), torch.zeros(()).to(values), codes)
    weights = pack_8_bits(codes, torch.ones(256))
    out = torch.empty((16, 256), dtype=dtype)
    QuantMatmul(load_emulated(), dtype, weights.encoding)(
        out, torch.eye(32, dtype=dtype)[16:], weights, Workspace(dtype, 1, CPU)
    )
    assert torch.equal(out.float(), codes[:, 0].float().expand(16, 256))


@pytest.mark.parametrize(("rows", "shape"), [(1, FEW), (16, FEW), (64, MANY)])
def test_weights_are_read_once(rows: int, shape: Shape) -> None:
    """Each weight, by one warp of a block; rows by each warp that needs them, or once by a block of many."""
    n = k = 256
    weights, _ = int4_case(n, k, 128)
    module = load_emulated()(SOURCE, [few_instance(BF16, "int4"), many_instance(BF16, "int4"), TAKE_INPUTS])
    x = torch.ones((rows, k), dtype=BF16)
    out = torch.empty((rows, n), dtype=BF16)
    QuantMatmul(lambda *_: module, BF16, "int4")(out, x, weights, Workspace(BF16, 1, CPU))
    num_chunks = n // CHUNK * k // CHUNK
    scales = num_chunks * 32 * 16  # a lane's eight, of each chunk; seven other lanes get the same
    readers = n // CHUNK if shape is FEW else shape.blocks(rows, n)[0]
    assert module.counts.loaded_bytes + module.counts.copied_bytes == weights.words.nbytes + scales + readers * x.nbytes


def test_nothing_to_do_launches_nothing() -> None:
    weights, _ = int4_case(32, 32, 32)
    out = torch.empty((0, 32), dtype=BF16)
    QuantMatmul(load_emulated(), BF16, "int4")(out, torch.empty((0, 32), dtype=BF16), weights, Workspace(BF16, 1, CPU))


def test_sizes_that_the_kernels_cannot_are_refused() -> None:
    matrix = grouped(12, 128, 64)
    with pytest.raises(ValueError, match="12 outputs"):
        pack_int4(matrix.codes, matrix.scales, matrix.zeros, matrix.group_of)
    with pytest.raises(ValueError, match="128 inputs in 8 groups"):
        pack_int4(*(getattr(grouped(16, 128, 16), name) for name in ("codes", "scales", "zeros", "group_of")))
    with pytest.raises(ValueError, match="different numbers"):
        pack_int4(grouped(8, 64, 32).codes, torch.ones((8, 2)), grouped(8, 64, 32).zeros, torch.zeros(64).long())
    with pytest.raises(ValueError, match="40 inputs"):
        pack_8_bits(torch.ones((8, 40), dtype=torch.int8), torch.ones(8))
