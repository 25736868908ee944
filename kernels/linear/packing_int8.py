"""Float weights as int8 with a scale for each output, in the layout of int8.h."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.linear.packing import PANEL, PackedLinear, pack_bias

INT8 = 1
MAX_INPUTS = 65536
"""Of more, the sums of products of bytes might not fit 32 bits."""


def fits_int8(n_in: int) -> bool:
    """Whether rows of n_in weights can be packed."""
    return n_in % 4 == 0 and n_in <= MAX_INPUTS


def pack_int8(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight: [n_out, n_in] of any float dtype; bias: [n_out] or None. Raises ValueError unless fits_int8(n_in)."""
    n_out, n_in = weight.shape
    if not fits_int8(n_in):
        raise ValueError(f"int8 wants a multiple of 4 inputs, at most {MAX_INPUTS}, not {n_in}")
    panels = -(-n_out // PANEL)
    codes, scales = quantize_int8(weight)
    codes = functional.pad(codes, (0, 0, 0, panels * PANEL - n_out))
    scales = functional.pad(scales, (0, panels * PANEL - n_out))
    excess = 128 * codes.sum(dim=1, dtype=torch.int32)
    packed = torch.cat(
        (
            codes.view(panels, PANEL, n_in // 4, 4).transpose(1, 2).reshape(panels, -1).view(torch.uint8),
            scales.view(panels, PANEL).view(torch.uint8),
            excess.view(panels, PANEL).view(torch.uint8),
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
