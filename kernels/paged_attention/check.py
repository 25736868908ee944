"""Cases for `python -m kernels check`: decoding over long contexts, prompts, and some of both."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.check.case import Case, Size, Trial, random_tensor, short_name, to_numpy
from kernels.cuda.module import LoadKernels
from kernels.paged_attention import reference
from kernels.paged_attention.cuda import DeviceItems, DeviceStep, PagedAttention, Shape
from kernels.paged_attention.items import cut

_BLOCK_SIZE = 16
_FP8 = torch.float8_e4m3fn
# Of the norm of a token's result: a query's weights are rounded to its dtype.
_ALLOWED = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
_MOST_COMPARED = 24  # tokens, for the reference takes its time
_PARALLEL_PER_PROCESSOR, _PARALLEL_EMULATED = 2, 8


@dataclass(frozen=True, slots=True)
class _Step:
    """lengths: queries and context of each sequence."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    num_heads: int = 64
    num_kv_heads: int = 8
    head_dim: int = 128
    kept: torch.dtype | None = None
    dtype: torch.dtype = field(default=torch.bfloat16)

    @property
    def shape(self) -> Shape:
        """With the usual scale."""
        kept = self.kept or self.dtype
        heads = (self.num_heads, self.num_kv_heads, self.head_dim)
        return Shape(self.dtype, kept, *heads, block_size=_BLOCK_SIZE, scale=self.head_dim**-0.5)


_SKEWED = tuple((1, 512) for _ in range(48)) + tuple((1, 14848) for _ in range(16))  # 4096 on the average
_STEPS: dict[Size, tuple[_Step, ...]] = {
    Size.SMALL: (
        _Step("decode", ((1, 1), (1, 77), (1, 300)), 6, 2, 64),
        _Step("decode, split", ((1, 700),), 2, 2, 64, dtype=torch.float16),
        _Step("decode, fp8", ((1, 40), (1, 90)), 8, 2, 80, _FP8),
        _Step("prompts and decode", ((33, 70), (1, 50), (5, 5)), 6, 2, 64),
    ),
    Size.FULL: (
        _Step("decode 64 of 4k", ((1, 4096),) * 64),
        _Step("decode 16 of 4k", ((1, 4096),) * 16),
        _Step("decode 1 of 32k", ((1, 32768),)),
        _Step("decode 64 of 512 to 15k", _SKEWED),
        _Step("decode 64 of 2k", ((1, 2048),) * 64, 9, 3, 64),
        _Step("decode 64 of 4k, fp8", ((1, 4096),) * 64, kept=_FP8),
        _Step("decode 64 of 4k", ((1, 4096),) * 64, 8, 8),
        _Step("prompt of 8k", ((8192, 8192),), 32, 8),
        _Step("prompt of 8k", ((8192, 8192),), 32, 8, dtype=torch.float16),
        _Step("8 prompts of 512 behind 4k", ((512, 4608),) * 8, 32, 8),
    ),
}


def cases(size: Size) -> list[Case]:
    """The shapes of models of 8 to 70 billion parameters, and of a small one."""
    return [
        Case(
            "paged_attention",
            f"{step.name}, {step.num_heads}/{step.num_kv_heads} heads of {step.head_dim} {short_name(step.dtype)}",
            partial(_prepare, step),
        )
        for step in _STEPS[size]
    ]


@dataclass(frozen=True, slots=True)
class _Where:
    """Of each sequence: where its queries begin, its context, its blocks. As a DeviceStep has them."""

    cu_seqlens_q: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]

    @classmethod
    def of(cls, lengths: tuple[tuple[int, int], ...]) -> "_Where":
        """Blocks of all sequences are mixed."""
        queries, contexts = (np.array(column, dtype=np.int32) for column in zip(*lengths, strict=True))
        counts = -(-contexts // _BLOCK_SIZE)
        free = np.random.default_rng(4).permutation(int(counts.sum())).astype(np.int32)
        tables = np.zeros((len(contexts), int(counts.max())), dtype=np.int32)
        for table, end, count in zip(tables, np.cumsum(counts), counts, strict=True):
            table[:count] = free[end - count : end]
        return cls(np.concatenate(([0], np.cumsum(queries))).astype(np.int32), contexts, tables)

    def of_token(self, token: int) -> tuple[int, NDArray[np.int64]]:
        """The context that it sees, and its blocks."""
        sequence = int(np.searchsorted(self.cu_seqlens_q, token, side="right")) - 1
        context = int(self.context_lens[sequence] - (self.cu_seqlens_q[sequence + 1] - 1 - token))
        return context, self.block_tables[sequence, : -(-context // _BLOCK_SIZE)].astype(np.int64)

    def num_seen(self) -> int:
        """Keys that the queries see, added up."""
        many, ends = np.diff(self.cu_seqlens_q).astype(np.int64), self.context_lens.astype(np.int64)
        return int((many * ends - many * (many - 1) // 2).sum())

    def on(self, device: torch.device, items: DeviceItems) -> DeviceStep:
        """Copied there."""
        columns = (self.cu_seqlens_q, self.context_lens, self.block_tables)
        cu_seqlens_q, context_lens, block_tables = (torch.from_numpy(column).to(device) for column in columns)
        return DeviceStep(cu_seqlens_q, context_lens, block_tables, items)


def _prepare(step: _Step, load: LoadKernels, device: torch.device) -> Trial:
    shape, where = step.shape, _Where.of(step.lengths)
    num_tokens, num_blocks = int(where.cu_seqlens_q[-1]), int(where.block_tables.max()) + 1
    dims = (num_blocks, _BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
    keys, values = (_random_cache(seed, dims, shape, device) for seed in (1, 2))
    query = random_tensor(3, (num_tokens, shape.num_heads, shape.head_dim), shape.dtype, device)
    out = torch.full_like(query, float("nan"))
    scales = [torch.linspace(*ends, shape.num_kv_heads, device=device) for ends in ((0.5, 2.0), (3.0, 1.0))]
    key_scales, value_scales = scales if shape.cache_dtype == _FP8 else (None, None)
    num_parallel = _num_parallel(device)
    items = cut(where.cu_seqlens_q, where.context_lens, shape.group, shape.num_kv_heads, num_parallel)
    on_device = where.on(device, DeviceItems.of(items, device))
    operation = PagedAttention(load, shape, len(step.lengths), num_parallel, device)
    tokens = sorted({int(token) for token in np.linspace(0, num_tokens - 1, _MOST_COMPARED)})

    def expected(token: int) -> NDArray[np.float32]:
        """As the last query of a sequence of its own."""
        context, blocks = where.of_token(token)
        return reference.paged_attention(
            to_numpy(query[token : token + 1]),
            _read(keys, key_scales, blocks),
            _read(values, value_scales, blocks),
            np.array([0, 1], dtype=np.int32),
            np.array([context], dtype=np.int32),
            np.arange(len(blocks), dtype=np.int32)[None],
            shape.scale,
        )

    token_bytes = 2 * shape.num_kv_heads * shape.head_dim * shape.cache_dtype.itemsize
    return Trial(
        launch=lambda: operation(out, query, keys, values, on_device, 0, key_scales, value_scales),
        compare=lambda: _error(out[tokens], np.concatenate([expected(token) for token in tokens])),
        num_bytes=query.nbytes + out.nbytes + int(where.context_lens.sum()) * token_bytes,
        num_operations=4 * shape.num_heads * shape.head_dim * where.num_seen(),
    )


def _read(cache: Tensor, scales: Tensor | None, blocks: NDArray[np.int64]) -> NDArray[np.float32]:
    kept = cache[torch.from_numpy(blocks).to(cache.device)].float()
    return to_numpy(kept if scales is None else kept * scales[:, None])


def _random_cache(seed: int, dims: tuple[int, ...], shape: Shape, device: torch.device) -> Tensor:
    """Made on the device, for it may be large: compared is what is in it."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(dims, dtype=shape.dtype, device=device, generator=generator).to(shape.cache_dtype)


def _num_parallel(device: torch.device) -> int:
    if device.type != "cuda":
        return _PARALLEL_EMULATED
    return _PARALLEL_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _error(actual: Tensor, expected: NDArray[np.float32]) -> float:
    """The worst token's, as a share of what is allowed."""
    differences = np.linalg.norm(to_numpy(actual) - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))
    return float(differences.max()) / _ALLOWED[actual.dtype] if np.isfinite(differences).all() else float("inf")
