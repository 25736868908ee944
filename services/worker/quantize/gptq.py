"""GPTQ: what one input's rounding does wrong, the inputs after it make good (Frantar et al., GPTQ, 2022).

With the inputs' second moments H, rounding weight i of an output to q costs least when the later weights change by
-(w_i - q) / U_ii * U_i, where U is the upper Cholesky factor of H^-1. Rows are independent of each other.
"""

import torch
from torch import Tensor

from services.worker.quantize.grids import Fit, Grid
from shared.quantization.matrix import QuantisedMatrix

_DAMPING = 0.01  # of the mean of the diagonal: H may be singular on few tokens
_BLOCK = 128  # inputs whose changes to later ones are applied together


def quantise_gptq(weights: Tensor, products: Tensor, grid: Grid, desc_act: bool) -> QuantisedMatrix:
    """weights: float32 [n_out, n_in]; products: float64 [n_in, n_in], InputStatistics.trusted_products.

    desc_act: the inputs with the largest second moments first, so that all others make good for these; groups are then
    formed in that order.
    """
    n_in = weights.shape[1]
    order = products.diagonal().argsort(descending=True, stable=True) if desc_act else torch.arange(n_in)
    factor = _inverse_factor(products[order][:, order])
    codes, fits = _round_in_turn(weights.t()[order].contiguous(), factor, grid)
    in_place = torch.empty_like(codes)
    in_place[:, order] = codes
    group_of = torch.empty(n_in, dtype=torch.int64)
    group_of[order] = torch.arange(n_in) // (grid.group_size or n_in)
    return grid.matrix(in_place, fits, group_of)


def _inverse_factor(products: Tensor) -> Tensor:
    """float32 upper Cholesky factor of the damped inverse."""
    damped = products.clone()
    diagonal = damped.diagonal()
    damping = _DAMPING * diagonal.mean()
    diagonal[diagonal == 0] = 1.0  # an input that never was anything: its weights matter to nobody
    diagonal += damping
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


def _round_in_turn(inputs: Tensor, factor: Tensor, grid: Grid) -> tuple[Tensor, list[Fit]]:
    """Codes [n_out, n_in] and fits.

    inputs: the weights as [n_in, n_out], so that an input's lie side by side; they are changed on the way.
    """
    n_in = len(inputs)
    fits = [] if grid.group_size else [grid.fit(inputs.t())]
    codes = []
    for first in range(0, n_in, _BLOCK):
        last = min(first + _BLOCK, n_in)
        block, within = inputs[first:last], factor[first:last, first:last]
        errors = torch.empty_like(block)
        for i in range(last - first):
            if grid.group_size and (first + i) % grid.group_size == 0:
                fits.append(grid.fit(block[i : i + grid.group_size].t()))
            column = block[i].unsqueeze(1)
            codes.append(grid.codes(column, fits[-1]))
            errors[i] = (column - grid.values(codes[-1], fits[-1])).squeeze(1) / within[i, i]
            block[i + 1 :].addr_(within[i, i + 1 :], errors[i], alpha=-1)
        inputs[last:] -= factor[first:last, last:].t() @ errors
    return torch.cat(codes, dim=1), fits
