"""Float weights as int8 with a scale for each output, in the layout of int8.h."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.linear.packing import PANEL, PackedLinear, pack_bias

INT8 = 1
GROUP = 64
"""Inputs of a row that are quantised with one scale."""

_ZERO_CODE = 128  # once codes are unsigned


def fits_int8(n_in: int) -> bool:
    """Whether rows of n_in weights can be packed."""
    return n_in % GROUP == 0


def pack_int8(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight: [n_out, n_in] of any float dtype; bias: [n_out] or None. Raises ValueError unless fits_int8(n_in)."""
    n_out, n_in = weight.shape
    if not fits_int8(n_in):
        raise ValueError(f"int8 wants a multiple of {GROUP} inputs, not {n_in}")
    panels = -(-n_out // PANEL)
    codes, scales = quantize_int8(weight)
    padding = panels * PANEL - n_out
    codes = functional.pad((codes.to(torch.int16) + _ZERO_CODE).to(torch.uint8), (0, 0, 0, padding))
    packed = torch.cat(
        (
            codes.view(panels, PANEL, n_in // 4, 4).transpose(1, 2).reshape(panels, -1),
            functional.pad(scales, (0, padding)).view(panels, PANEL).view(torch.uint8),
        ),
        dim=1,
    )
    return PackedLinear(INT8, n_out, n_in, packed, pack_bias(bias, panels))


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 codes [n_out, n_in] in -127..127 and float32 scales [n_out]: the largest weight of an output becomes 127."""
    values = weight.float()
    scales = values.abs().amax(dim=1) / 127
    steps = torch.where(scales > 0, scales, 1.0)
    codes = (values / steps.unsqueeze(1)).round_().clamp_(-127, 127).to(torch.int8)
    return codes, scales
