"""AWQ's clipping: a group's few largest weights may be cut off where that rounds all others more finely, and the inputs
say that this is worth it (Lin et al., AWQ, 2023)."""

import torch
from torch import Tensor

from services.worker.quantize.grids import Fit, Grid, round_to
from shared.quantization.matrix import QuantisedMatrix

_NUM_STEPS = 20  # from the largest weight to 0
_MOST_STEPS = 10  # no more than half is cut off


def round_clipped(weights: Tensor, products: Tensor, grid: Grid, num_whole: int = 0) -> QuantisedMatrix:
    """Each weight to the nearest value, of grids that change each group's part of the outputs least.

    weights: float32 [n_out, n_in]; products: [n_in, n_in], see InputStatistics. num_whole: of the first outputs none is
    clipped. Queries and keys are such: what counts is their product, not each one's error.
    """
    size = grid.group_size or weights.shape[1]
    starts = range(0, weights.shape[1], size)
    blocks = [products[first : first + size, first : first + size].float() for first in starts]
    groups = torch.split(weights, size, dim=1)
    fits = [_best_fit(group, block, grid, num_whole) for group, block in zip(groups, blocks, strict=True)]
    return round_to(weights, grid, fits)


def _best_fit(group: Tensor, products: Tensor, grid: Grid, num_whole: int) -> Fit:
    largest = group.abs().amax(dim=1, keepdim=True)
    best = grid.fit(group)
    least = _errors(group, products, grid, best)
    least[:num_whole] = -torch.inf  # not 0: rounding makes some errors negative
    for step in range(1, _MOST_STEPS + 1):
        limit = largest * (1 - step / _NUM_STEPS)
        fit = grid.fit(group.clamp(-limit, limit))
        errors = _errors(group, products, grid, fit)
        is_better = errors < least
        least = torch.where(is_better, errors, least)
        best = Fit(torch.where(is_better, fit.scales, best.scales), torch.where(is_better, fit.zeros, best.zeros))
    return best


def _errors(group: Tensor, products: Tensor, grid: Grid, fit: Fit) -> Tensor:
    """[n_out], each output's mean square error that comes from this group."""
    difference = grid.values(grid.codes(group, fit), fit) - group
    return ((difference @ products) * difference).sum(dim=1)
