"""The options an engine is loaded with, named as vLLM names them, and what they mean for a model."""

from typing import Literal, Protocol

import torch

from shared.repository.config import ModelConfig

CpuKernels = Literal["auto", "torch", "avx2", "avx512", "amx"]

Quantization = Literal["none", "int8", "gguf"]


class EngineError(Exception):
    """The engine cannot start with these options; the message has the numbers."""


class EngineOptions(Protocol):
    """What CpuEngine.load reads of the worker's configuration.

    max_model_len: tokens a sequence may have, None for all the model knows. max_num_seqs, max_num_batched_tokens:
    bounds of one step. gpu_memory_utilization: share of the machine's available memory this engine may take.
    kv_cache_memory_bytes: size of the KV cache, instead of that share. num_threads: 0 leaves the choice to torch.
    cpu_kernels: auto takes the C++ kernels of the processor's highest level, or torch where they cannot; a level by
    name or torch takes nothing else. quantization: of the weights, see Packer. swap_space: GiB of the host's memory, of
    all ranks together.
    """

    @property
    def dtype(self) -> str: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def gpu_memory_utilization(self) -> float: ...
    @property
    def kv_cache_memory_bytes(self) -> int | None: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def cpu_kernels(self) -> CpuKernels: ...
    @property
    def quantization(self) -> Quantization: ...
    @property
    def swap_space(self) -> float: ...


class CudaEngineOptions(EngineOptions, Protocol):
    """What CudaEngine.load reads besides. kv_cache_dtype: auto is that of the activations, fp8 is e4m3.
    enforce_eager: decode steps are not captured."""

    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def enforce_eager(self) -> bool: ...


def resolve_dtype(option: str, config: ModelConfig, has_kernels: bool) -> torch.dtype:
    """The dtype of weights, activations and KV cache. has_kernels: whether the C++ kernels can compute bfloat16.

    auto: float32 for a float32 model, and for one that torch computes on a CPU without AVX-512, where its bfloat16
    crawls; else bfloat16. With AVX2 the kernels' bfloat16 takes from a sixth (one row) to two thirds (a prompt) of the
    time of torch's float32; with AVX-512 torch's own bfloat16 takes half to two thirds of it.
    """
    if option == "float32":
        return torch.float32
    if option == "bfloat16":
        return torch.bfloat16
    if option != "auto":
        raise EngineError(f"dtype must be auto, bfloat16 or float32, not {option!r}")
    if config.torch_dtype == "float32":
        return torch.float32
    torch_is_fast = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return torch.bfloat16 if has_kernels or torch_is_fast else torch.float32


def resolve_max_model_len(option: int | None, config: ModelConfig) -> int:
    """Tokens a sequence may have, prompt and output together. Raises EngineError beyond what the model knows."""
    if option is None:
        return config.max_position_embeddings
    if not 1 <= option <= config.max_position_embeddings:
        raise EngineError(
            f"max_model_len {option} is not between 1 and the model's max_position_embeddings, "
            f"{config.max_position_embeddings}"
        )
    return option
