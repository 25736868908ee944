"""A quantised matrix in memory, one number of a code to each byte; [n_out, n_in] as torch's linear weights are."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """4 bits a weight: (codes - zeros of the group) * scales of the group.

    codes: uint8 [n_out, n_in], 0 to 15. scales: float16, bfloat16 or float32 [n_out, groups]. zeros: uint8
    [n_out, groups], 0 to 15. group_of: int64 [n_in], the group of each input; every group has n_in / groups of them,
    but for parts that cut.take_inputs makes.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor

    @property
    def group_size(self) -> int:
        """Inputs of a group, where all have as many."""
        return self.codes.shape[1] // self.scales.shape[1]

    def dequantise(self) -> Tensor:
        """float32 [n_out, n_in]."""
        steps = self.codes.float() - self.zeros.float()[:, self.group_of]
        return steps * self.scales.float()[:, self.group_of]


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """8 bits a weight: values * the output's scale. values: int8 or float8_e4m3fn [n_out, n_in]; scales: float32
    [n_out]."""

    values: Tensor
    scales: Tensor

    def dequantise(self) -> Tensor:
        """float32 [n_out, n_in]."""
        return self.values.float() * self.scales.unsqueeze(1)


QuantisedMatrix = GroupedMatrix | ScaledMatrix


def groups_in_order(n_in: int, group_size: int) -> Tensor:
    """group_of for inputs that are grouped as they come."""
    return torch.arange(n_in) // group_size
