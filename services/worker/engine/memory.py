"""How many KV blocks fit: the arithmetic of memory at start."""

import math
from dataclasses import dataclass
from pathlib import Path

import psutil
from torch import Tensor

from services.worker.engine.options import EngineError, EngineOptions
from shared.repository.config import ModelConfig

GIB = 1 << 30

# A CPU's memory is shared with everything else on the machine, so the automatic size stops here
# unless one sequence of max_model_len needs more.
AUTOMATIC_LIMIT_BYTES = 4 * GIB

# Of the KV cache, at warm-up. What a step touches first costs it page faults, in a virtual machine twice: on a new node
# 16 streams had 6 % fewer tokens/s. The rest of a large cache is claimed as it is used: an idle node stays small.
CLAIMED_AT_ONCE_BYTES = 1 * GIB

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes that a model takes with these options: weights, the activations of one step, one KV block."""

    weights: int
    activations: int
    block: int


def memory_needs(config: ModelConfig, options: EngineOptions, max_model_len: int, item_bytes: int) -> MemoryNeeds:
    """item_bytes: bytes of one value of the engine's dtype."""
    num_tokens = options.max_num_batched_tokens
    num_values = sum(math.prod(shape) for shape in config.parameter_shapes().values())
    widest = max(3 * config.intermediate_size, 3 * (config.q_size + 2 * config.kv_size)) + 3 * config.hidden_size
    hidden = num_tokens * widest * max(item_bytes, 4)
    mask = num_tokens * max_model_len * (item_bytes + 1)
    logits = options.max_num_seqs * config.vocab_size * 4 * 2
    return MemoryNeeds(
        weights=num_values * item_bytes,
        activations=hidden + mask + logits,
        block=2 * config.num_hidden_layers * options.block_size * config.kv_size * item_bytes,
    )


def num_kv_blocks(
    config: ModelConfig, options: EngineOptions, max_model_len: int, item_bytes: int, available_bytes: int
) -> int:
    """Blocks of the KV cache; available_bytes is what the machine has left before the model is loaded.

    Attention gathers one layer's keys and values beside the cache, hence the extra share. Raises EngineError where not
    one sequence of max_model_len tokens fits, or kv_cache_memory_bytes is more than the machine has left.
    """
    needs = memory_needs(config, options, max_model_len, item_bytes)
    blocks_of_one = math.ceil(max_model_len / options.block_size)
    beside_cache = needs.weights + needs.activations
    if options.kv_cache_memory_bytes is not None:
        usable = options.kv_cache_memory_bytes
        source = f"kv_cache_memory_bytes is {_size(usable)}"
        if usable + beside_cache > available_bytes:
            raise EngineError(
                f"{source}, but with {_size(beside_cache)} for weights and activations this is more than the "
                f"{_size(available_bytes)} of memory available"
            )
        num_blocks = usable // needs.block
    else:
        layers = config.num_hidden_layers
        share = int(available_bytes * options.gpu_memory_utilization)
        usable = max(0, share - beside_cache) * layers // (layers + 1)
        source = (
            f"of {_size(available_bytes)} available memory gpu_memory_utilization {options.gpu_memory_utilization:g} "
            f"leaves {_size(usable)} after {_size(beside_cache)} for weights and activations"
        )
        wanted = max(blocks_of_one, min(AUTOMATIC_LIMIT_BYTES // needs.block, options.max_num_seqs * blocks_of_one))
        num_blocks = min(usable // needs.block, wanted)
    if num_blocks < blocks_of_one:
        fitting = num_blocks * options.block_size
        raise EngineError(
            f"max_model_len {max_model_len} needs {_size(blocks_of_one * needs.block)} of KV cache, but {source}: "
            f"at most {fitting} tokens fit. Lower max_model_len or raise gpu_memory_utilization or "
            "kv_cache_memory_bytes"
        )
    return num_blocks


def claim_first_blocks(kv_cache: Tensor, num_bytes: int = CLAIMED_AT_ONCE_BYTES) -> int:
    """Zero the blocks that are handed out first, so that their memory is there; how many. kv_cache: [layers, 2,
    num_blocks, ...], not in use yet."""
    num_blocks = kv_cache.shape[2]
    claimed = min(num_blocks, num_bytes * num_blocks // kv_cache.nbytes)
    kv_cache[:, :, :claimed].zero_()
    return claimed


def available_memory_bytes() -> int:
    """Memory that can be taken without swapping, within the limit of the control group that this process runs in."""
    available = psutil.virtual_memory().available
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
        if limit != "max":
            available = min(available, int(limit) - int(_CGROUP_USED.read_text()))
    except (OSError, ValueError):
        return available
    return max(available, 0)


def _size(num_bytes: int) -> str:
    """Two decimals in GiB, or in KiB where GiB would hide them."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 20 else f"{num_bytes / 1024:.1f} KiB"
