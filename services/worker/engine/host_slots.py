"""The swap space of an engine whose KV cache lies in the host's memory already.

Of little use there, where more cache takes the same memory; but it is the same to scheduler and worker as on a device.
"""

import torch
from torch import Tensor

from services.worker.engine.interface import Swaps
from services.worker.engine.options import EngineError

GIB = 1 << 30


def num_slots_in(swap_space: float, kv_cache: Tensor, num_ranks: int = 1) -> int:
    """swap_space: GiB of all ranks together. kv_cache: [layers, 2, num_blocks, ...] of one, which are equally large:
    each comes to the same number."""
    return int(swap_space * GIB) // num_ranks // kv_cache[:, :, 0].nbytes


def check_swap_space(swap_space: float, available_bytes: int) -> None:
    """Raises EngineError for more GiB than the host has left: it would be given and then missed, block by block."""
    if swap_space * GIB > available_bytes:
        raise EngineError(
            f"swap_space {swap_space:g} is more than the {available_bytes / GIB:.2f} GiB of memory available: lower it"
        )


class HostSlots:
    """kv_cache: [layers, 2, num_blocks, ...]."""

    def __init__(self, kv_cache: Tensor, num_slots: int) -> None:
        layers, halves, _, *block = kv_cache.shape
        self._kv_cache = kv_cache
        self._slots = torch.empty((layers, halves, num_slots, *block), dtype=kv_cache.dtype)

    def swap(self, swaps: Swaps) -> None:
        """See Engine."""
        out, back = torch.from_numpy(swaps.out).long(), torch.from_numpy(swaps.back).long()
        self._slots[:, :, out[:, 1]] = self._kv_cache[:, :, out[:, 0]]
        self._kv_cache[:, :, back[:, 1]] = self._slots[:, :, back[:, 0]]
