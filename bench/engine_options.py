"""An engine and its steps for measurements, without the services around it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from services.worker.engine.cpu import CpuEngine
from services.worker.engine.interface import RowSampling, StepInput
from shared.messages.sampling import Sampling


@dataclass(frozen=True)
class BenchEngineOptions:
    """EngineOptions with the worker's defaults."""

    dtype: str = "auto"
    max_model_len: int | None = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = 2 << 30
    num_threads: int = 0
    cpu_kernels: Literal["auto", "torch", "avx2", "avx512", "amx"] = "auto"
    quantization: Literal["none", "int8", "gguf"] = "none"
    swap_space: float = 0.0


def decode_batch(engine: CpuEngine, batch_size: int, context_len: int) -> StepInput:
    """batch_size sequences of context_len tokens, the newest of each to compute, sampled greedily."""
    blocks_each = -(-context_len // engine.block_size)
    tables = np.arange(batch_size * blocks_each, dtype=np.int32).reshape(batch_size, blocks_each)
    positions = np.full(batch_size, context_len - 1, dtype=np.int64)
    blocks = tables[:, (context_len - 1) // engine.block_size].astype(np.int64)
    token_ids = np.random.Generator(np.random.PCG64(0)).integers(0, engine.vocab_size, batch_size)
    sampling = Sampling(max_tokens=1, temperature=0.0)
    return StepInput(
        token_ids=token_ids.astype(np.int32),
        positions=positions,
        slot_mapping=blocks * engine.block_size + positions % engine.block_size,
        cu_seqlens_q=np.arange(batch_size + 1, dtype=np.int32),
        context_lens=np.full(batch_size, context_len, dtype=np.int32),
        block_tables=tables,
        sampled=np.arange(batch_size, dtype=np.int32),
        output_positions=np.zeros(batch_size, dtype=np.int32),
        rows=[RowSampling(sampling, 1) for _ in range(batch_size)],
    )
