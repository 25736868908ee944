"""Weights in the layouts that the C++ products read; linear.h and bf16.h describe them."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

PANEL = 32
BF16 = 0


class LinearStruct(ctypes.Structure):
    """struct Linear of linear.h."""

    _fields_ = (
        ("encoding", ctypes.c_int32),
        ("n_out", ctypes.c_int32),
        ("n_in", ctypes.c_int32),
        ("wide_scales", ctypes.c_int32),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A projection's packed weights and bias; they must outlive every struct made of them.

    weight: contiguous, as its encoding's header says. bias: float32 [panels * 32] or None. wide_scales: see blocks.h.
    """

    encoding: int
    n_out: int
    n_in: int
    weight: Tensor
    bias: Tensor | None = None
    wide_scales: bool = False

    def struct(self) -> LinearStruct:
        """The C++ view of it."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return LinearStruct(self.encoding, self.n_out, self.n_in, self.wide_scales, self.weight.data_ptr(), bias)


def pack_bf16(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight: [n_out, n_in] of any float dtype, n_in even; bias: [n_out] or None."""
    n_out, n_in = weight.shape
    panels = -(-n_out // PANEL)
    padded = functional.pad(weight.bfloat16(), (0, 0, 0, panels * PANEL - n_out))
    packed = padded.view(panels, PANEL, n_in // 2, 2).transpose(1, 2).contiguous()
    return PackedLinear(BF16, n_out, n_in, packed, pack_bias(bias, panels))


def pack_bias(bias: Tensor | None, panels: int) -> Tensor | None:
    """float32 [panels * 32] from [n_out], zeros behind it."""
    return None if bias is None else functional.pad(bias.float(), (0, panels * PANEL - len(bias))).contiguous()


def gate_up_order(inner_size: int) -> Tensor:
    """int64 [2 * inner_size]: rows of a stacked [gate; up] in the order of the fused SiLU, whose panels hold 16 columns
    of the gate and then the same 16 of up. inner_size: a multiple of 16."""
    gate = torch.arange(inner_size).view(-1, PANEL // 2)
    return torch.cat((gate, gate + inner_size), dim=1).reshape(-1)
