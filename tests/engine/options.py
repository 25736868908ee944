"""Options of engines in tests, with the worker's defaults where they do not matter."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """What CpuEngine reads; a small KV cache unless said."""

    dtype: str = "float32"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_threads: int = 0
    cpu_kernels: Literal["auto", "torch", "avx2", "avx512", "amx"] = "auto"
    quantization: Literal["none", "int8", "gguf"] = "none"
    swap_space: float = 0.0
