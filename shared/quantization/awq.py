"""AutoAWQ's layout, version gemm (Lin et al., AWQ, 2023; the layout is that of its library).

qweight: int32 [n_in, n_out / 8], qzeros: int32 [groups, n_out / 8], scales: [groups, n_out]. In each word the eight
outputs lie in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first.
"""

import torch
from torch import Tensor

from shared.quantization.matrix import GroupedMatrix, groups_in_order
from shared.quantization.words import pack_words, unpack_words

_BITS = 4
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> GroupedMatrix:
    """The matrix that these three tensors hold."""
    n_in = qweight.shape[0]
    return GroupedMatrix(
        codes=_unpack(qweight).t().contiguous(),
        scales=scales.t().contiguous(),
        zeros=_unpack(qzeros).t().contiguous(),
        group_of=groups_in_order(n_in, n_in // scales.shape[0]),
    )


def pack_awq(matrix: GroupedMatrix) -> dict[str, Tensor]:
    """Its tensors by the ends of their names. Raises ValueError where the inputs are not grouped as they come, which
    this layout cannot say."""
    if not torch.equal(matrix.group_of, groups_in_order(matrix.codes.shape[1], matrix.group_size)):
        raise ValueError("AWQ's layout has no place for inputs in another order")
    return {
        "qweight": _pack(matrix.codes.t()),
        "qzeros": _pack(matrix.zeros.t()),
        "scales": matrix.scales.t().contiguous(),
    }


def _unpack(words: Tensor) -> Tensor:
    """uint8 [rows, n_out]."""
    stored = unpack_words(words, _BITS).reshape(len(words), -1, len(_ORDER))
    columns = torch.empty_like(stored)
    columns[..., _ORDER] = stored
    return columns.flatten(1)


def _pack(columns: Tensor) -> Tensor:
    """columns: uint8 [rows, n_out]."""
    return pack_words(columns.reshape(len(columns), -1, len(_ORDER))[..., _ORDER].flatten(1), _BITS)
