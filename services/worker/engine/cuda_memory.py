"""How many KV blocks fit beside a model on a device: the arithmetic of a memory profile."""

import math
from dataclasses import dataclass

from services.worker.engine.options import EngineError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Bytes of a device. total: of its memory. others: what other processes have of it. weights: of the model.
    activations: more, at the height of the largest step. graphs: what captured steps keep."""

    total: int
    others: int
    weights: int
    activations: int
    graphs: int

    def told(self) -> str:
        """In GiB, for people."""
        return (
            f"of {_gib(self.total)} others use {_gib(self.others)}, weights take {_gib(self.weights)}, "
            f"activations {_gib(self.activations)} and captured steps {_gib(self.graphs)}"
        )


@dataclass(frozen=True, slots=True)
class CacheNeeds:
    """block_bytes: of one block in all layers. max_model_len, block_size: in tokens."""

    block_bytes: int
    block_size: int
    max_model_len: int

    @property
    def blocks_of_one(self) -> int:
        """Of the longest sequence."""
        return math.ceil(self.max_model_len / self.block_size)


def num_cuda_blocks(
    profile: MemoryProfile, needs: CacheNeeds, gpu_memory_utilization: float, kv_cache_memory_bytes: int | None
) -> int:
    """What a share of the device's memory leaves after everything else, or kv_cache_memory_bytes, in blocks.

    The share counts what others use: two workers of 0.45 fit on one device. Raises EngineError with the numbers where
    not one sequence of max_model_len tokens fits.
    """
    beside = profile.weights + profile.activations + profile.graphs
    share = int(profile.total * gpu_memory_utilization)
    free = profile.total - profile.others - beside
    if kv_cache_memory_bytes is None:
        usable = min(share - beside, free)
        source = f"gpu_memory_utilization {gpu_memory_utilization:g} leaves {_gib(max(usable, 0))}"
    else:
        usable = kv_cache_memory_bytes
        source = f"kv_cache_memory_bytes is {_gib(usable)}"
        if usable > free:
            raise EngineError(f"{source}, but only {_gib(max(free, 0))} are free: {profile.told()}")
    num_blocks = max(usable, 0) // needs.block_bytes
    if num_blocks < needs.blocks_of_one:
        raise EngineError(
            f"max_model_len {needs.max_model_len} needs {_gib(needs.blocks_of_one * needs.block_bytes)} of KV cache, "
            f"but {source}: at most {num_blocks * needs.block_size} tokens fit; {profile.told()}. Lower max_model_len, "
            "max_num_batched_tokens or max_num_seqs, or raise gpu_memory_utilization"
        )
    return num_blocks


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
