"""Parts of a quantised matrix, quantised as it is: some of its outputs, or some of its inputs."""

from dataclasses import replace

import torch
from torch import Tensor

from shared.quantization.matrix import GroupedMatrix, QuantisedMatrix

Index = slice | Tensor
"""Neighbours, or an int64 number of each."""


def take_outputs(matrix: QuantisedMatrix, index: Index) -> QuantisedMatrix:
    """These outputs, in memory of their own."""
    if isinstance(matrix, GroupedMatrix):
        codes, scales, zeros = (_rows(values, index) for values in (matrix.codes, matrix.scales, matrix.zeros))
        return replace(matrix, codes=codes, scales=scales, zeros=zeros)
    return replace(matrix, values=_rows(matrix.values, index), scales=_rows(matrix.scales, index))


def take_inputs(matrix: QuantisedMatrix, index: Index) -> QuantisedMatrix:
    """These inputs, in memory of their own; of 4 bits with the groups that one of them is in, each with however many
    inputs it keeps."""
    if not isinstance(matrix, GroupedMatrix):
        return replace(matrix, values=_columns(matrix.values, index))
    kept, group_of = torch.unique(matrix.group_of[index], return_inverse=True)
    return GroupedMatrix(
        codes=_columns(matrix.codes, index),
        scales=_columns(matrix.scales, kept),
        zeros=_columns(matrix.zeros, kept),
        group_of=group_of,
    )


def _rows(values: Tensor, index: Index) -> Tensor:
    """A copy: a view would keep all of it in memory."""
    return values[index].clone()


def _columns(values: Tensor, index: Index) -> Tensor:
    return values[:, index].clone(memory_format=torch.contiguous_format)
