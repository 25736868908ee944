"""What is remembered of a projection's inputs on the calibration text."""

from collections.abc import Iterable

import torch
from torch import Tensor

_OTHER_TEXTS = 0.2  # of what the calibration text says of inputs together, so much is taken to be so only there


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
    def squares(self) -> Tensor:
        """float64 [n], the mean of each input's."""
        return self._products.diagonal() / self._count

    @property
    def trusted_products(self) -> Tensor:
        """The products as far as other texts can be expected to have them: those of different inputs are shrunk.

        N tokens show squared correlations of 1 / N between inputs that have nothing to do with each other.
        Compensating for what is chance, or is so in this text alone, makes other texts worse.
        """
        products = self.products
        diagonal = products.diagonal()
        sizes = diagonal.sqrt().clamp(min=torch.finfo(torch.float32).tiny)
        squares = (products / sizes).div_(sizes.unsqueeze(1)).square_()  # of correlations
        num_pairs = len(sizes) * (len(sizes) - 1)
        found = float(squares.fill_diagonal_(0).sum())
        by_chance = num_pairs / self._count / found if found else 1.0
        kept = max(0.0, 1 - _OTHER_TEXTS - by_chance)
        trusted = kept * products
        trusted.diagonal().copy_(diagonal)
        return trusted

    @property
    def magnitudes(self) -> Tensor:
        return self._magnitudes / self._count


def seen(inputs: Iterable[Tensor]) -> InputStatistics:
    """Of all these inputs, each float32 [tokens, n]. Raises OverflowError where their products are not finite."""
    statistics: InputStatistics | None = None
    for x in inputs:
        statistics = InputStatistics(x.shape[1]) if statistics is None else statistics
        statistics.add(x)
    if statistics is None:
        raise ValueError("no inputs were seen")
    if not torch.isfinite(statistics.squares).all():
        raise OverflowError("the squares of some inputs are not finite")
    return statistics


def output_error(difference: Tensor, products: Tensor) -> float:
    """The mean square that a difference of weights [n_out, n_in] makes in a token's outputs, summed over these."""
    wide = difference.double()
    return float(((wide @ products) * wide).sum())
