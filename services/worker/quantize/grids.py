"""The values that a quantised weight may have, and which of them are nearest."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared.quantization.matrix import GroupedMatrix, QuantisedMatrix, ScaledMatrix

_MOST_CODE = 15
_LEAST_ZERO = 1  # a zero of 0 is stored as 15 by gptq's first version, which some tools read as 16
_LEAST_SCALE = 2.0**-18  # below it float16's own steps are too coarse for a scale
_MOST_INT8 = 127
_MOST_FP8 = 448.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Of one group. scales: float32 [n_out], as exact as they are stored; zeros: float32 [n_out], whole numbers."""

    scales: Tensor
    zeros: Tensor


class Grid(Protocol):
    """A way to quantise."""

    @property
    def group_size(self) -> int:
        """Inputs that share a fit, 0 for all of them."""

    def fit(self, weights: Tensor) -> Fit:
        """For weights float32 [n_out, n], so that none is beyond the grid's ends. If all are 0, any scale will do."""

    def codes(self, weights: Tensor, fit: Fit) -> Tensor:
        """Of the nearest values, in whatever dtype they are stored; weights: float32 [n_out, n]."""

    def values(self, codes: Tensor, fit: Fit) -> Tensor:
        """float32 [n_out, n]."""

    def matrix(self, codes: Tensor, fits: list[Fit], group_of: Tensor) -> QuantisedMatrix:
        """codes: [n_out, n_in]; fits: of each group; group_of: int64 [n_in]."""


@dataclass(frozen=True, slots=True)
class Int4Grid:
    """16 values with a float16 scale and a zero among them."""

    group_size: int

    def fit(self, weights: Tensor) -> Fit:
        """See Grid."""
        lowest, highest = weights.amin(dim=1).clamp(max=0), weights.amax(dim=1).clamp(min=0)
        whole = torch.maximum((highest - lowest) / _MOST_CODE, highest / (_MOST_CODE - _LEAST_ZERO))
        scales = whole.half().float().clamp(min=_LEAST_SCALE)
        return Fit(scales, (-lowest / scales).round().clamp(_LEAST_ZERO, _MOST_CODE))

    def codes(self, weights: Tensor, fit: Fit) -> Tensor:
        """See Grid."""
        steps = (weights / fit.scales.unsqueeze(1)).round() + fit.zeros.unsqueeze(1)
        return steps.clamp(0, _MOST_CODE).to(torch.uint8)

    def values(self, codes: Tensor, fit: Fit) -> Tensor:
        """See Grid."""
        return (codes.float() - fit.zeros.unsqueeze(1)) * fit.scales.unsqueeze(1)

    def matrix(self, codes: Tensor, fits: list[Fit], group_of: Tensor) -> QuantisedMatrix:
        """See Grid."""
        scales = torch.stack([fit.scales for fit in fits], dim=1).half()
        zeros = torch.stack([fit.zeros for fit in fits], dim=1).to(torch.uint8)
        return GroupedMatrix(codes, scales, zeros, group_of)


@dataclass(frozen=True, slots=True)
class ScaledGrid:
    """int8 or float8_e4m3fn with a float32 scale an output."""

    dtype: torch.dtype
    group_size: int = 0

    def fit(self, weights: Tensor) -> Fit:
        """See Grid."""
        most = _MOST_INT8 if self.dtype == torch.int8 else _MOST_FP8
        scales = (weights.abs().amax(dim=1) / most).clamp(min=torch.finfo(torch.float32).tiny)
        return Fit(scales, torch.zeros_like(scales))

    def codes(self, weights: Tensor, fit: Fit) -> Tensor:
        """See Grid."""
        steps = weights / fit.scales.unsqueeze(1)
        if self.dtype == torch.int8:
            return steps.round().clamp(-_MOST_INT8, _MOST_INT8).to(torch.int8)
        return steps.clamp(-_MOST_FP8, _MOST_FP8).to(self.dtype)

    def values(self, codes: Tensor, fit: Fit) -> Tensor:
        """See Grid."""
        return codes.float() * fit.scales.unsqueeze(1)

    def matrix(self, codes: Tensor, fits: list[Fit], group_of: Tensor) -> QuantisedMatrix:
        """See Grid."""
        return ScaledMatrix(codes, fits[0].scales)


def round_plainly(weights: Tensor, grid: Grid) -> QuantisedMatrix:
    """Each weight to the nearest value, whatever its inputs are. weights: float32 [n_out, n_in]."""
    groups = torch.split(weights, grid.group_size or weights.shape[1], dim=1)
    return round_to(weights, grid, [grid.fit(group) for group in groups])


def round_to(weights: Tensor, grid: Grid, fits: list[Fit]) -> QuantisedMatrix:
    """Each weight to the nearest value of its group's fit. weights: float32 [n_out, n_in], grouped as they come."""
    size = grid.group_size or weights.shape[1]
    groups = torch.split(weights, size, dim=1)
    codes = torch.cat([grid.codes(group, fit) for group, fit in zip(groups, fits, strict=True)], dim=1)
    return grid.matrix(codes, fits, torch.arange(weights.shape[1]) // size)
