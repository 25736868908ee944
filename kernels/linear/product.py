"""A packed matrix on its own, by the C++ library: for tests and measurements. A step has its own loop over all of them.

Tensors are contiguous; values are bfloat16 [M, n_in].
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.linear.packing import LinearStruct, PackedLinear
from kernels.linear.packing_blocks import BLOCK
from kernels.linear.packing_int8 import GROUP, INT8
from kernels.native.isa import Level
from kernels.native.library import load_library


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Input rows as an encoding reads them. codes: int8 [M, n_in]. scales, sums: float32 [M, groups], where a sum is
    that of a group's codes."""

    codes: Tensor
    scales: Tensor
    sums: Tensor


class Products:
    """Products by a team of threads of its own. level, defines: see load_library, whose BuildError it raises."""

    def __init__(self, level: Level | None = None, num_threads: int = 1, defines: tuple[str, ...] = ()) -> None:
        self._functions = load_library(level, defines).functions
        self._team = self._functions.tokenbus_team_new(num_threads)

    def __del__(self) -> None:
        if hasattr(self, "_team"):
            self._functions.tokenbus_team_delete(self._team)

    def multiply(self, packed: PackedLinear, values: Tensor) -> Tensor:
        """float32 [M, n_out], bias included; values are quantised first where the encoding wants it."""
        out = torch.empty((len(values), packed.n_out))
        self.multiply_all([packed], values, len(values), out)
        return out

    def multiply_all(self, matrices: Sequence[PackedLinear], values: Tensor, num_rows: int, out: Tensor) -> None:
        """All of them one after the other, as fast as in a step; for measurements.

        values, out: at least num_rows times the largest n_in and n_out elements, of which each product takes as many
        as it needs from the start.
        """
        structs = (LinearStruct * len(matrices))(*(matrix.struct() for matrix in matrices))
        self._functions.tokenbus_linear(self._team, structs, len(matrices), values.data_ptr(), num_rows, out.data_ptr())

    def quantize(self, packed: PackedLinear, values: Tensor) -> QuantizedRows:
        """The values as this matrix's encoding reads them. Not for bfloat16."""
        num_rows, num_groups = len(values), packed.n_in // (GROUP if packed.encoding == INT8 else BLOCK)
        codes = torch.empty((num_rows, packed.n_in), dtype=torch.int8)
        scales, sums = torch.empty((num_rows, num_groups)), torch.empty((num_rows, num_groups))
        self._functions.tokenbus_quantize(
            ctypes.byref(packed.struct()),
            values.data_ptr(),
            num_rows,
            codes.data_ptr(),
            scales.data_ptr(),
            sums.data_ptr(),
        )
        return QuantizedRows(codes, scales, sums)

    def embed(self, packed: PackedLinear, ids: Tensor) -> Tensor:
        """float32 [len(ids), n_in], the weights of these outputs. ids: int32, each below n_out."""
        out = torch.empty((len(ids), packed.n_in))
        self._functions.tokenbus_embed(ctypes.byref(packed.struct()), ids.data_ptr(), len(ids), out.data_ptr())
        return out
