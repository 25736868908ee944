"""RMSNorm on the CPU, in torch."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: float32 or bfloat16 [..., n], weight: [n] of the same dtype. Returns a new tensor of x's shape and dtype."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Adds x to residual in place. Returns (rms_norm(residual), residual)."""
    residual.add_(x)
    return torch.rms_norm(residual, (residual.shape[-1],), weight, eps), residual
