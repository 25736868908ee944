"""From a layout's tensors to a matrix and back, whichever layout it is."""

from collections.abc import Mapping

import torch
from torch import Tensor

from shared.quantization.awq import pack_awq, unpack_awq
from shared.quantization.eight_bits import pack_packed_int8, pack_scaled, unpack_packed_int8, unpack_scaled
from shared.quantization.gptq import pack_gptq, unpack_gptq
from shared.quantization.matrix import GroupedMatrix, QuantisedMatrix
from shared.quantization.scheme import Quantization


def load_matrix(quantization: Quantization, parts: Mapping[str, Tensor], n_in: int) -> QuantisedMatrix:
    """parts: tensors by the ends of their names, as stored_parts lists them. Raises ValueError for parts that make no
    matrix."""
    for end in ("scales", "weight_scale"):
        if end in parts and not torch.isfinite(parts[end].float()).all():
            raise ValueError("a scale is not a finite number")
    if quantization.layout == "awq":
        return unpack_awq(parts["qweight"], parts["qzeros"], parts["scales"])
    if quantization.layout == "gptq":
        tensors = parts["qweight"], parts["qzeros"], parts["scales"], parts.get("g_idx")
        return unpack_gptq(*tensors, quantization.zeros_less_one)
    if quantization.layout == "int8-packed":
        return unpack_packed_int8(parts["weight_packed"], parts["weight_scale"], n_in)
    return unpack_scaled(parts["weight"], parts["weight_scale"])


def store_matrix(quantization: Quantization, matrix: QuantisedMatrix) -> dict[str, Tensor]:
    """The inverse of load_matrix."""
    if isinstance(matrix, GroupedMatrix):
        return pack_awq(matrix) if quantization.layout == "awq" else pack_gptq(matrix, quantization.zeros_less_one)
    return pack_packed_int8(matrix) if quantization.layout == "int8-packed" else pack_scaled(matrix)
