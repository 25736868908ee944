"""One piece of memory for all packed weights of a model: read in order, step after step, from huge pages."""

from dataclasses import replace

import torch

from kernels.linear.packing import PANEL, PackedLinear
from kernels.native.memory import zeros_in_huge_pages

_LINE_BYTES = 64


def room_for(n_out: int, n_in: int) -> int:
    """Bytes that a matrix takes at most, whatever its encoding: bfloat16 takes most."""
    return -(-n_out // PANEL) * PANEL * n_in * torch.bfloat16.itemsize + _LINE_BYTES


class WeightArena:
    """num_bytes are reserved and claimed page by page as weights are placed."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = zeros_in_huge_pages((num_bytes,), torch.uint8)
        self._num_used = 0

    def place(self, packed: PackedLinear) -> PackedLinear:
        """The same weights in this memory. Raises ValueError when it is full."""
        source = packed.weight.contiguous()
        num_bytes = source.numel() * source.element_size()
        end = self._num_used + num_bytes
        if end > len(self._memory):
            raise ValueError(f"{num_bytes} bytes of weights do not fit behind {self._num_used} of {len(self._memory)}")
        target = self._memory[self._num_used : end].view(source.dtype).view(source.shape)
        target.copy_(source)
        self._num_used = -(-end // _LINE_BYTES) * _LINE_BYTES
        return replace(packed, weight=target)
