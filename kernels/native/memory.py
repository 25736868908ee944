"""Memory for what the kernels read all over: the KV cache, packed weights.

Tiles of the cache lie anywhere in hundreds of megabytes. In pages of 4 KiB nearly each of them costs the processor a
walk through the page table, in a virtual machine two; in huge pages of 2 MiB hardly any does. Where the system has none
to give, ordinary pages come instead.
"""

import math
import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20


def zeros_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in memory of its own, freed with the tensor; not touched before it is used."""
    num_elements = math.prod(shape)
    num_bytes = num_elements * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=num_elements).view(shape)
