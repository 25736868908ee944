"""Matrices of int8 or fp8 (e4m3) with a scale an output or one for all: compressed-tensors and AutoFP8.

weight: int8 or float8_e4m3fn [n_out, n_in]; weight_scale: [n_out, 1], [n_out], [1] or a single number. Packed, the int8
layout has weight_packed: int32 [n_out, n_in / 4, rounded up] of values plus 128 and weight_shape: int64 [2] in
weight's place.
"""

import torch
from torch import Tensor
from torch.nn import functional

from shared.quantization.matrix import ScaledMatrix
from shared.quantization.words import WORD_BITS, pack_words, unpack_words

_BITS = 8
_OFFSET = 128


def unpack_scaled(weight: Tensor, weight_scale: Tensor) -> ScaledMatrix:
    """The matrix that these two tensors hold. Raises ValueError for an fp8 weight that is not a number."""
    if weight.dtype == torch.float8_e4m3fn and not torch.isfinite(weight.float()).all():
        raise ValueError("a weight is not a number")
    scales = weight_scale.float().reshape(-1).expand(len(weight))
    return ScaledMatrix(weight, scales.contiguous())


def unpack_packed_int8(weight_packed: Tensor, weight_scale: Tensor, n_in: int) -> ScaledMatrix:
    """The same of packed int8."""
    codes = unpack_words(weight_packed, _BITS)[:, :n_in]
    return unpack_scaled((codes.to(torch.int16) - _OFFSET).to(torch.int8), weight_scale)


def pack_scaled(matrix: ScaledMatrix) -> dict[str, Tensor]:
    """Its tensors by the ends of their names."""
    return {"weight": matrix.values, "weight_scale": matrix.scales.unsqueeze(1)}


def pack_packed_int8(matrix: ScaledMatrix) -> dict[str, Tensor]:
    """Its tensors by the ends of their names. A last word that the inputs do not fill ends in zeros."""
    codes = (matrix.values.to(torch.int16) + _OFFSET).to(torch.uint8)
    missing = -codes.shape[1] % (WORD_BITS // _BITS)
    return {
        "weight_packed": pack_words(functional.pad(codes, (0, missing)), _BITS),
        "weight_scale": matrix.scales.unsqueeze(1),
        "weight_shape": torch.tensor(matrix.values.shape),
    }
