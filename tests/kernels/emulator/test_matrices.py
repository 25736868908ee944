"""ldmatrix and mma in the emulator, against the fragment layouts of the PTX manual and NumPy's product."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.kernels.arrays import random_tensor, to_float32
from tests.kernels.emulator import probes
from tests.kernels.emulator.module import SCHEDULES, EmulatedModule, EmulationError, Schedule

ONE, WARP = (1, 1, 1), (32, 1, 1)
DTYPES = {"__nv_bfloat16": torch.bfloat16, "__half": torch.float16}
LANES = range(32)


@pytest.fixture(params=SCHEDULES, ids=str)
def module(request: pytest.FixtureRequest) -> EmulatedModule:
    schedule: Schedule = request.param
    return probes.load("matrices", schedule)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_ldmatrix_deals_out_four_matrices(module: EmulatedModule, is_transposed: bool) -> None:
    rows = np.random.default_rng(1).integers(0, 2**16, (32, 8)).astype(np.uint16)
    out = torch.zeros((32, 4), dtype=torch.int32)
    kernel = f"tokenbus::loaded<{'true' if is_transposed else 'false'}>"
    module.launch(kernel, ONE, WARP, (out, torch.from_numpy(rows.view(np.int16))))
    found = out.numpy().view(np.uint16).reshape(32, 4, 2)
    for matrix in range(4):
        wanted = rows[8 * matrix : 8 * matrix + 8]
        wanted = wanted.T if is_transposed else wanted
        assert np.array_equal(found[:, matrix].reshape(8, 8), wanted)
    assert module.counts.matrix_loads == 1


# Of mma.m16n8k16, by the manual: group = lane / 4, place = lane % 4; rows and columns of a lane's numbers in order.


def places_of_a(lane: int) -> list[tuple[int, int]]:
    """Row and column in a of its eight numbers."""
    group, place = lane // 4, lane % 4
    return [
        (group + (8 if i in (2, 3, 6, 7) else 0), place * 2 + i % 2 + (8 if i >= 4 else 0))
        for i in range(8)
    ]  # fmt: skip


def places_of_b(lane: int) -> list[tuple[int, int]]:
    """Row and column in b of its four numbers."""
    group, place = lane // 4, lane % 4
    return [(place * 2 + i % 2 + (8 if i >= 2 else 0), group) for i in range(4)]


def places_of_sums(lane: int) -> list[tuple[int, int]]:
    """Row and column in the product of its four numbers."""
    group, place = lane // 4, lane % 4
    return [(group + (8 if i >= 2 else 0), place * 2 + i % 2) for i in range(4)]


def dealt(matrix: torch.Tensor, places: list[list[tuple[int, int]]]) -> torch.Tensor:
    """A matrix's numbers by lane, as they lie in registers."""
    return torch.stack([torch.stack([matrix[place] for place in of_lane]) for of_lane in places])


@pytest.mark.parametrize("name", DTYPES)
def test_mma_by_the_manuals_fragments(module: EmulatedModule, name: str) -> None:
    rng, dtype = np.random.default_rng(2), DTYPES[name]
    a, b = random_tensor(rng, (16, 16), dtype), random_tensor(rng, (16, 8), dtype)
    before = random_tensor(rng, (16, 8), torch.float32)
    sums = dealt(before, [places_of_sums(lane) for lane in LANES]).contiguous()
    fragments = [
        dealt(matrix, [places(lane) for lane in LANES]).view(torch.int32)
        for matrix, places in ((a, places_of_a), (b, places_of_b))
    ]
    module.launch(f"tokenbus::product_of_fragments<{name}>", ONE, WARP, (sums, *fragments))
    expected = before.numpy().astype(np.float64) + product(a, b)
    wanted = dealt(torch.from_numpy(expected), [places_of_sums(lane) for lane in LANES]).numpy()
    np.testing.assert_allclose(sums.numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert module.counts.matrix_products == 1


def product(a: torch.Tensor, b: torch.Tensor) -> NDArray[np.float64]:
    """In float64."""
    result: NDArray[np.float64] = to_float32(a).astype(np.float64) @ to_float32(b).astype(np.float64)
    return result


@pytest.mark.parametrize("name", DTYPES)
def test_a_product_of_what_ldmatrix_loaded(module: EmulatedModule, name: str) -> None:
    rng, dtype = np.random.default_rng(3), DTYPES[name]
    a, b = random_tensor(rng, (16, 16), dtype), random_tensor(rng, (16, 16), dtype)
    out = torch.full((16, 16), float("nan"))
    module.launch(f"tokenbus::product<{name}>", ONE, WARP, (out, a, b))
    np.testing.assert_allclose(out.numpy(), product(a, b), rtol=1e-5, atol=1e-5)


# By how many rounds the 8 rows of a matrix are late when rows of a head lie side by side: some begin in the same banks.
CONFLICTS_OF_ROWS = {64: 7, 80: 1, 96: 3, 128: 7, 256: 7}


@pytest.mark.parametrize("head_dim", CONFLICTS_OF_ROWS)
@pytest.mark.parametrize("is_padded", [False, True])
def test_conflicts_between_banks_are_counted(module: EmulatedModule, head_dim: int, is_padded: bool) -> None:
    row_bytes = head_dim * 2 + (16 if is_padded else 0)
    out = torch.zeros(32, dtype=torch.int32)
    module.launch("tokenbus::loads_of_rows", ONE, WARP, (out, np.int32(row_bytes)), shared_bytes=16 * row_bytes)
    assert module.counts.bank_conflicts == (0 if is_padded else 4 * CONFLICTS_OF_ROWS[head_dim])


def test_lanes_that_name_the_same_row_are_no_conflict(module: EmulatedModule) -> None:
    out = torch.zeros(32, dtype=torch.int32)
    module.launch("tokenbus::loads_of_rows", ONE, WARP, (out, np.int32(0)), shared_bytes=32)
    assert module.counts.bank_conflicts == 0


@pytest.mark.parametrize("offset", [2, 4, 8])
def test_a_misaligned_row_is_refused(module: EmulatedModule, offset: int) -> None:
    out = torch.zeros(32, dtype=torch.int32)
    with pytest.raises(EmulationError, match="a misaligned address for ldmatrix"):
        module.launch("tokenbus::load_matrix_at", ONE, WARP, (out, np.int32(offset)), shared_bytes=1024)
