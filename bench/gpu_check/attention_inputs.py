"""The rows of the attention tables, and their tensors: a paged cache for our kernels, dense ones for peers."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.gpu_check.where import Where
from kernels.paged_attention.cuda import DeviceItems, DeviceStep, PagedAttention, Shape
from kernels.paged_attention.items import cut

BLOCK_SIZE = 16
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Row:
    """queries: of each sequence; 1: decode. contexts: where sequences differ; else each has `context` tokens. goal,
    stretch: shares of the copy bandwidth, or for a prompt TFLOP/s. is_fp8: the cache."""

    name: str
    num_sequences: int
    context: int
    num_heads: int = 64
    num_kv_heads: int = 8
    head_dim: int = 128
    queries: int = 1
    contexts: tuple[int, ...] = ()
    is_fp8: bool = False
    goal: float = 0.0
    stretch: float = 0.0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return self.contexts or (self.context,) * self.num_sequences

    @property
    def shape(self) -> Shape:
        """With the usual scale."""
        dtype = torch.bfloat16
        kept = FP8 if self.is_fp8 else dtype
        heads = (self.num_heads, self.num_kv_heads, self.head_dim)
        return Shape(dtype, kept, *heads, block_size=BLOCK_SIZE, scale=self.head_dim**-0.5)

    @property
    def cache_bytes(self) -> int:
        """Keys and values, each once."""
        return 2 * sum(self.lengths) * self.num_kv_heads * self.head_dim * self.shape.cache_dtype.itemsize

    @property
    def flops(self) -> int:
        """Of both products, without keys that a query does not see."""
        seen = sum(self.queries * (2 * context - self.queries + 1) // 2 for context in self.lengths)
        return 4 * seen * self.num_heads * self.head_dim


_SKEWED = tuple(int(context) for context in np.geomspace(256, 16384, 64) * 4096 / np.geomspace(256, 16384, 64).mean())

DECODE = (
    Row("B64 ctx 4k, 64/8 heads of 128", 64, 4096, goal=0.85, stretch=0.90),
    Row("B16 ctx 4k, 64/8 heads of 128", 16, 4096, goal=0.75, stretch=0.85),
    Row("B1 ctx 32k, 64/8 heads of 128", 1, 32768, goal=0.60, stretch=0.75),
    Row("B64 skewed, mean 4k, 64/8 heads of 128", 64, 4096, contexts=_SKEWED, goal=0.70, stretch=0.80),
    Row("B64 ctx 2k, 9/3 heads of 64 (SmolLM2)", 64, 2048, 9, 3, 64, goal=0.70, stretch=0.80),
)
DECODE_FP8 = Row("B64 ctx 4k, 64/8 heads of 128, fp8", 64, 4096, is_fp8=True)
FP8_GOAL, FP8_STRETCH = 1.6, 1.8  # times as fast as bfloat16
PREFILL = Row("prompt of 8k, causal, 32/8 heads of 128", 1, 8192, 32, 8, queries=8192, goal=250.0, stretch=450.0)
PREFILL_OF_FLASH, PREFILL_OF_CUDNN = 0.80, 0.75  # of the peer's rate; the second one is for wgmma, later

TINY_DECODE = (
    Row("B2 ctx 48, 8/1 heads of 128", 2, 48, 8, 1, goal=0.85, stretch=0.90),
    Row("B3 skewed, 9/3 heads of 64", 3, 60, 9, 3, 64, contexts=(20, 60, 100), goal=0.70, stretch=0.80),
)
TINY_FP8 = Row("B2 ctx 48, 8/1 heads of 128, fp8", 2, 48, 8, 1, is_fp8=True)
TINY_PREFILL = Row("prompt of 70, causal, 4/1 heads of 128", 1, 70, 4, 1, queries=70, goal=250.0, stretch=450.0)


@dataclass
class Inputs:
    """query, out: [T, H, D]; caches: [N, B, K, D]; tables: int32 [S, B]."""

    row: Row
    query: Tensor
    out: Tensor
    key_cache: Tensor
    value_cache: Tensor
    tables: NDArray[np.int32]
    step: DeviceStep
    attention: PagedAttention
    scales: Tensor | None = field(default=None)

    def launch(self) -> None:
        """Our kernels."""
        self.attention(self.out, self.query, self.key_cache, self.value_cache, self.step, 0, self.scales, self.scales)

    def dense(self, cache: Tensor) -> Tensor:
        """[S, K, longest, D]: what a peer without pages reads; behind a shorter sequence are other numbers."""
        longest = max(self.row.lengths)
        ids = torch.from_numpy(self.tables.astype(np.int64)).to(cache.device)
        tokens = cache[ids].flatten(1, 2)[:, :longest]
        return tokens.transpose(1, 2).contiguous()

    def dense_query(self) -> Tensor:
        """[S, H, queries, D]."""
        count = len(self.row.lengths)
        return self.query.view(count, self.row.queries, *self.query.shape[1:]).transpose(1, 2).contiguous()

    def dense_out(self) -> Tensor:
        """Our result as a peer's is shaped."""
        count = len(self.row.lengths)
        return self.out.view(count, self.row.queries, *self.out.shape[1:]).transpose(1, 2)


def make_inputs(row: Row, where: Where) -> Inputs:
    """Random numbers, made on the device; blocks of all sequences are mixed."""
    device, shape = where.device, row.shape
    context_lens = np.array(row.lengths, dtype=np.int32)
    cu_seqlens_q = np.arange(0, len(context_lens) * row.queries + 1, row.queries, dtype=np.int32)
    tables = _mixed_tables(context_lens)
    generator = torch.Generator(device).manual_seed(0)

    def random(*dims: int) -> Tensor:
        return torch.randn(dims, dtype=torch.bfloat16, device=device, generator=generator)

    num_blocks = int(tables.max()) + 1
    caches = [random(num_blocks, BLOCK_SIZE, row.num_kv_heads, row.head_dim).to(shape.cache_dtype) for _ in range(2)]
    query = random(int(cu_seqlens_q[-1]), row.num_heads, row.head_dim)
    items = cut(cu_seqlens_q, context_lens, shape.group, row.num_kv_heads, where.num_parallel)
    there = [torch.from_numpy(column).to(device) for column in (cu_seqlens_q, context_lens, tables)]
    return Inputs(
        row=row,
        query=query,
        out=torch.full_like(query, float("nan")),
        key_cache=caches[0],
        value_cache=caches[1],
        tables=tables,
        step=DeviceStep(there[0], there[1], there[2], DeviceItems.of(items, device)),
        attention=PagedAttention(where.load, shape, len(context_lens), where.num_parallel, device),
        scales=torch.ones(row.num_kv_heads, device=device) if row.is_fp8 else None,
    )


def _mixed_tables(context_lens: NDArray[np.int32]) -> NDArray[np.int32]:
    counts = -(-context_lens // BLOCK_SIZE)
    free = np.random.default_rng(0).permutation(int(counts.sum())).astype(np.int32)
    tables = np.zeros((len(counts), int(counts.max())), dtype=np.int32)
    for table, end, count in zip(tables, np.cumsum(counts), counts, strict=True):
        table[:count] = free[end - count : end]
    return tables
