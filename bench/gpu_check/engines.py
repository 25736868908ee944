"""The engines that parts compare and time: the GPU worker's, or the same steps with emulated kernels."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bench.gpu_check.where import Where
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits as SamplingLimits
from services.worker.engine.cuda import CudaEngine
from services.worker.engine.cuda_forward import CudaForward
from services.worker.engine.interface import Launched, StepInput, StepOutput
from services.worker.models.cuda import Limits
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from shared.repository.config import ModelConfig

BLOCK_SIZE = 16
_EMULATED_BLOCKS = 64


@dataclass(frozen=True)
class Options:
    """EngineOptions and CudaEngineOptions."""

    dtype: str = "bfloat16"
    max_model_len: int | None = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    block_size: int = BLOCK_SIZE
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    num_threads: int = 0
    cpu_kernels: Literal["auto", "torch", "avx2", "avx512", "amx"] = "torch"
    quantization: Literal["none", "int8", "gguf"] = "none"
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    swap_space: float = 0.0


class BenchEngine(Protocol):
    """What parts ask of an engine."""

    @property
    def block_size(self) -> int: ...
    def step(self, batch: StepInput) -> StepOutput: ...
    def launch(self, batch: StepInput) -> Launched: ...
    def compute_logits(self, batch: StepInput) -> Tensor: ...


class EmulatedEngine:
    """The GPU worker's own step: kernels in the emulator, products by torch on a processor, no graphs."""

    block_size = BLOCK_SIZE

    def __init__(
        self, config: ModelConfig, weights: Iterable[tuple[str, Tensor]], options: Options, where: Where
    ) -> None:
        parameters = Parameters(weights, config.parameter_shapes(), torch.bfloat16)
        limits = Limits(options.max_num_batched_tokens, options.max_num_seqs, where.num_parallel)
        max_len = options.max_model_len or config.max_position_embeddings
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        shape = (config.num_hidden_layers, 2, _EMULATED_BLOCKS, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
        self.forward = CudaForward(
            builder_of(config.architecture)(config, parameters),
            config,
            torch.from_numpy(cos_sin_table(frequencies, max_len)),
            torch.full(shape, float("nan"), dtype=torch.bfloat16),
            limits,
            where.load,
            Sampling(where.load, torch.float32, SamplingLimits(config.vocab_size, options.max_num_seqs, 1024, 64)),
        )

    def step(self, batch: StepInput) -> StepOutput:
        """See Engine."""
        return self.forward.run(batch)

    def launch(self, batch: StepInput) -> Launched:
        """See PipelinedEngine."""
        return self.forward.launch(batch)

    def compute_logits(self, batch: StepInput) -> Tensor:
        """float32 [R, vocabulary]."""
        return self.forward.compute_logits(batch)


def make_engine(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], options: Options, where: Where
) -> BenchEngine:
    """Of random weights, or of any."""
    if where.is_dry:
        return EmulatedEngine(config, weights, options, where)
    return CudaEngine("random", "1", config, weights, options)
