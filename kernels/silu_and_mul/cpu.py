"""SiLU gate on the CPU, in torch."""

from torch import Tensor
from torch.nn import functional


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up: float32 or bfloat16 [T, 2n], the gate in the first half of each row. Returns a new tensor [T, n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
