"""RMSNorm on the CPU, in torch."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x: float32 or bfloat16 [..., n], weight: float32 [n]. Returns a new tensor of x's shape, rounded to dtype."""
    return torch.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Adds x to residual, float32 of the same shape, in place. Returns (rms_norm(residual) in x's dtype, residual).

    The residual stays in float32: rounded to bfloat16 after each layer it carries most of a bfloat16 model's error.
    """
    residual.add_(x)
    return rms_norm(residual, weight, eps, x.dtype), residual
