"""GPTQ and AWQ on one matrix: better on the inputs that were seen, and nothing but the grid's values."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from services.worker.quantize.awq import search_scales
from services.worker.quantize.clipping import round_clipped
from services.worker.quantize.gptq import quantise_gptq
from services.worker.quantize.grids import Grid, Int4Grid, ScaledGrid, round_plainly
from services.worker.quantize.statistics import InputStatistics, output_error
from shared.quantization.matrix import GroupedMatrix

N_OUT, N_IN = 48, 256
GRIDS: list[Grid] = [Int4Grid(32), Int4Grid(128), ScaledGrid(torch.int8), ScaledGrid(torch.float8_e4m3fn)]


@pytest.fixture
def weights() -> Tensor:
    return torch.randn((N_OUT, N_IN), generator=torch.Generator().manual_seed(1)) * 0.05


@pytest.fixture
def statistics() -> InputStatistics:
    """Of inputs that depend on each other, some of them much larger than the others, as a model's are."""
    random = torch.Generator().manual_seed(2)
    mixing = torch.randn((N_IN // 4, N_IN), generator=random)
    sizes = torch.rand(N_IN, generator=random) ** 6 * 20 + 0.1
    statistics = InputStatistics(N_IN)
    for _ in range(3):
        noise = torch.randn((200, N_IN), generator=random)
        statistics.add((torch.randn((200, N_IN // 4), generator=random) @ mixing + noise) * sizes)
    return statistics


def error_of(dequantised: Tensor, weights: Tensor, statistics: InputStatistics) -> float:
    return output_error(dequantised - weights, statistics.products)


def test_statistics_are_means_over_all_inputs() -> None:
    x = torch.randn((7, 5), generator=torch.Generator().manual_seed(3))
    statistics = InputStatistics(5)
    statistics.add(x[:3])
    statistics.add(x[3:])
    torch.testing.assert_close(statistics.products.float(), x.t() @ x / 7)
    torch.testing.assert_close(statistics.magnitudes.float(), x.abs().mean(dim=0))
    difference = torch.randn((4, 5), generator=torch.Generator().manual_seed(4))
    expected = float((x @ difference.t()).square().sum(dim=1).mean())
    assert output_error(difference, statistics.products) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_rounding_is_to_the_nearest_value(grid: Grid, weights: Tensor) -> None:
    fit = grid.fit(weights[:, :32])
    codes = grid.codes(weights[:, :32], fit)
    found = grid.values(codes, fit)
    if isinstance(grid, Int4Grid):
        every = grid.values(torch.arange(16, dtype=torch.uint8).expand(N_OUT, 16), fit)
    elif grid == ScaledGrid(torch.int8):
        every = grid.values(torch.arange(-127, 128, dtype=torch.int8).expand(N_OUT, 255), fit)
    else:
        every = grid.values(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).expand(N_OUT, 256), fit)
    distances = (every.unsqueeze(1) - weights[:, :32].unsqueeze(2)).abs().nan_to_num(1e9)
    torch.testing.assert_close((found - weights[:, :32]).abs(), distances.amin(dim=2), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("size", [3e-4, 1.0, 1e4])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_no_weight_is_wrong_by_more_than_half_a_step(grid: Grid, size: float, weights: Tensor) -> None:
    """Whatever their signs are, and however small or large they are: none is beyond the grid's ends."""
    whole = weights[:, :32] / weights.abs().max()
    halves = whole.abs()
    for group in (whole, halves, -halves, halves + 0.1, halves - 0.01, halves - 0.1, 0.1 - halves):
        sized = group * size
        if isinstance(grid, Int4Grid):
            steps = (sized.amax(dim=1).clamp(min=0) - sized.amin(dim=1).clamp(max=0)) / 14
        else:
            steps = sized.abs().amax(dim=1) / (127 if grid == ScaledGrid(torch.int8) else 14)  # e4m3's are uneven
        fit = grid.fit(sized)
        wrong = (grid.values(grid.codes(sized, fit), fit) - sized).abs().amax(dim=1)
        assert (wrong < 0.52 * steps).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("desc_act", [False, True])
def test_gptq_is_better_than_rounding(grid: Grid, desc_act: bool, weights: Tensor, statistics: InputStatistics) -> None:
    plain = error_of(round_plainly(weights, grid).dequantise(), weights, statistics)
    matrix = quantise_gptq(weights, statistics.trusted_products, grid, desc_act)
    assert error_of(matrix.dequantise(), weights, statistics) < 0.6 * plain


@pytest.mark.parametrize("noise", [1.0, 6.0, 30.0])
@pytest.mark.parametrize("num_tokens", [N_IN // 2, N_IN, 4 * N_IN])
def test_gptq_is_not_worse_than_rounding_on_tokens_that_it_has_not_seen(
    num_tokens: int, noise: float, weights: Tensor
) -> None:
    """However few tokens it has seen, and however little these say: the correlations of a few tokens are mostly chance,
    and what makes good for them makes all others worse."""
    random = torch.Generator().manual_seed(7)
    mixing = torch.randn((N_IN // 4, N_IN), generator=random)
    sizes = torch.rand(N_IN, generator=random) ** 6 * 20 + 0.1
    seen_ones, others = InputStatistics(N_IN), InputStatistics(N_IN)
    for statistics, count in ((seen_ones, num_tokens), (others, 4000)):
        known = torch.randn((count, N_IN // 4), generator=random) @ mixing
        statistics.add((known + noise * torch.randn((count, N_IN), generator=random)) * sizes)
    for grid in GRIDS:
        plain = error_of(round_plainly(weights, grid).dequantise(), weights, others)
        for desc_act in (False, True):
            found = quantise_gptq(weights, seen_ones.trusted_products, grid, desc_act).dequantise()
            assert error_of(found, weights, others) < (0.7 if noise == 1.0 else 1.06) * plain, (grid, desc_act)


def test_products_of_different_inputs_are_trusted_as_far_as_tokens_can_tell() -> None:
    """Never wholly; not at all where they are chance; what a single input is, always."""
    random = torch.Generator().manual_seed(8)
    same = torch.randn((4000, 1), generator=random) * torch.ones(16)
    nothing = torch.randn((50, 16), generator=random)
    for x, least, most in ((same, 0.75, 0.8), (nothing, 0.0, 0.1)):
        statistics = InputStatistics(16)
        statistics.add(x)
        products, trusted = statistics.products, statistics.trusted_products
        assert torch.equal(trusted.diagonal(), products.diagonal())
        kept = float(trusted[0, 1] / products[0, 1])
        assert least <= kept <= most
        assert torch.allclose(trusted - trusted.diagonal().diag(), kept * (products - products.diagonal().diag()))


def test_inputs_that_do_not_depend_on_each_other_are_rounded_plainly(weights: Tensor) -> None:
    for grid in GRIDS:
        plain = round_plainly(weights, grid).dequantise()
        assert torch.equal(quantise_gptq(weights, torch.eye(N_IN).double(), grid, False).dequantise(), plain)


def test_desc_act_takes_the_largest_inputs_first(weights: Tensor, statistics: InputStatistics) -> None:
    matrix = quantise_gptq(weights, statistics.trusted_products, Int4Grid(64), True)
    assert isinstance(matrix, GroupedMatrix)
    sizes = statistics.products.diagonal()
    by_group = [sizes[matrix.group_of == group] for group in range(4)]
    assert all(len(group) == 64 for group in by_group)
    assert all(float(one.min()) >= float(after.max()) for one, after in pairwise(by_group))


def test_an_input_that_never_was_anything_does_no_harm(weights: Tensor) -> None:
    silent = InputStatistics(N_IN)
    silent.add(torch.randn((400, N_IN), generator=torch.Generator().manual_seed(9)).index_fill(1, torch.tensor(5), 0.0))
    for seen_ones in (silent, InputStatistics(N_IN)):
        seen_ones.add(torch.zeros((1, N_IN)))
        matrix = quantise_gptq(weights, seen_ones.trusted_products, Int4Grid(32), False)
        assert torch.isfinite(matrix.dequantise()).all()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_an_input_that_never_was_anything_changes_nothing_for_others(
    size: float, weights: Tensor, statistics: InputStatistics
) -> None:
    """However small the other inputs are."""
    products = statistics.trusted_products * size**2
    products[-3:] = products[:, -3:] = 0
    for grid in (Int4Grid(32), ScaledGrid(torch.int8)):
        found = quantise_gptq(weights, products, grid, False).dequantise()[:, :-32]
        alone = quantise_gptq(weights, products / size**2, grid, False).dequantise()[:, :-32]
        assert float((found == alone).float().mean()) > 0.99


@pytest.mark.parametrize("group_size", [32, 128])
def test_awqs_scales_are_better_than_none(group_size: int, weights: Tensor, statistics: InputStatistics) -> None:
    grid = Int4Grid(group_size)
    plain = error_of(round_plainly(weights, grid).dequantise(), weights, statistics)
    scales = search_scales(weights, statistics, grid)
    found = round_plainly(weights * scales, grid).dequantise() / scales
    assert error_of(found, weights, statistics) < 0.9 * plain


def test_inputs_from_the_same_outputs_share_scales(weights: Tensor, statistics: InputStatistics) -> None:
    scales = search_scales(weights, statistics, Int4Grid(32), (2, 64)).reshape(2, 2, 64)
    assert torch.equal(scales[:, 0], scales[:, 1])
    assert not torch.equal(scales[0], scales[1])


def test_groups_of_zeros_stay_zeros() -> None:
    for grid in GRIDS:
        assert not round_plainly(torch.zeros((8, 128)), grid).dequantise().any()


@pytest.mark.parametrize("grid", [Int4Grid(32), Int4Grid(128)], ids=str)
def test_clipping_changes_no_output_more_than_rounding(
    grid: Grid, weights: Tensor, statistics: InputStatistics
) -> None:
    """And most of them less. Errors are of each group by itself, as clipping is chosen."""
    products = torch.block_diag(
        *(
            statistics.products[i : i + grid.group_size, i : i + grid.group_size]
            for i in range(0, N_IN, grid.group_size)
        )
    )
    heavy = weights * (1 + torch.rand(weights.shape, generator=torch.Generator().manual_seed(10)) ** 12 * 4)
    plain = (round_plainly(heavy, grid).dequantise() - heavy).double()
    clipped = (round_clipped(heavy, statistics.products, grid).dequantise() - heavy).double()
    before, after = (((errors @ products) * errors).sum(dim=1) for errors in (plain, clipped))
    assert (after <= before * 1.0001).all()
    assert float(after.sum()) < 0.9 * float(before.sum())


def test_outputs_that_stay_whole_are_rounded_plainly(weights: Tensor, statistics: InputStatistics) -> None:
    """Queries' and keys', and no others'."""
    plain = round_plainly(weights, Int4Grid(32)).dequantise()
    clipped = round_clipped(weights, statistics.products, Int4Grid(32), 16).dequantise()
    assert torch.equal(clipped[:16], plain[:16])
    assert not (clipped[16:] == plain[16:]).all(dim=1).any()
    below_zero = round_clipped(weights, -statistics.products, Int4Grid(32), 16).dequantise()
    assert torch.equal(below_zero[:16], plain[:16])  # errors are negative, as rounding can make them
