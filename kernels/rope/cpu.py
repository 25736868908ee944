"""Rotary position embedding on the CPU, in torch."""

import torch
from torch import Tensor


def rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    """x: float32 or bfloat16 [T, H, D]; cos_sin: float32 [T, D], the table's rows at the tokens' positions.

    Returns a new tensor of x's shape and dtype, computed in float32. The rows are gathered once a step by the caller,
    since every layer needs the same ones.
    """
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)
