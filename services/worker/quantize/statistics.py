"""What is remembered of a projection's inputs on the calibration text."""

from collections.abc import Iterable

import torch
from torch import Tensor


class InputStatistics:
    """products: float64 [n, n], the mean of x x^T over all inputs x. magnitudes: float64 [n], of |x|."""

    def __init__(self, n: int) -> None:
        self._products = torch.zeros((n, n), dtype=torch.float64)
        self._magnitudes = torch.zeros(n, dtype=torch.float64)
        self._count = 0

    def add(self, x: Tensor) -> None:
        """x: float32 [tokens, n]."""
        self._products += x.t() @ x
        self._magnitudes += x.abs().sum(dim=0)
        self._count += len(x)

    @property
    def products(self) -> Tensor:
        return self._products / self._count

    @property
    def magnitudes(self) -> Tensor:
        return self._magnitudes / self._count


def seen(inputs: Iterable[Tensor]) -> InputStatistics:
    """Of all these inputs, each float32 [tokens, n]."""
    statistics: InputStatistics | None = None
    for x in inputs:
        statistics = InputStatistics(x.shape[1]) if statistics is None else statistics
        statistics.add(x)
    if statistics is None:
        raise ValueError("no inputs were seen")
    return statistics


def output_error(difference: Tensor, products: Tensor) -> float:
    """The mean square that a difference of weights [n_out, n_in] makes in a token's outputs, summed over these."""
    wide = difference.double()
    return float(((wide @ products) * wide).sum())
