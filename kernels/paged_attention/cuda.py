"""Attention over the paged cache on a device."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.module import Argument, LoadKernels, c_name
from kernels.paged_attention.items import PREFILL_ROWS, TILE_TOKENS, Items, most_decode_items

SOURCE = Path(__file__).with_name("kernel.cu")
HEAD_DIMS = (64, 80, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
BLOCK_SIZES = (16, 32, 64)
_THREADS = 128
_WARPS = 4
_STAGES = 3
_NARROW_GROUP = 2  # of heads, up to which tensor cores would mostly multiply zeros
_WIDEST_PLAIN_GROUP = 4  # for whose sums a thread has registers without tensor cores


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernels are compiled for. dtype: of queries and outputs, bfloat16 or float16; cache_dtype: the same, or
    float8_e4m3fn. soft_cap: of scores, 0 for none."""

    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    soft_cap: float = 0.0

    @property
    def group(self) -> int:
        """Query heads of a key/value head."""
        return self.num_heads // self.num_kv_heads

    def problem(self) -> str | None:
        """Why there is no kernel for it."""
        if self.num_heads % self.num_kv_heads or self.group not in GROUPS:
            return f"{self.num_heads} heads over {self.num_kv_heads} of keys and values: a group has {_listed(GROUPS)}"
        if self.head_dim not in HEAD_DIMS:
            return f"head_dim {self.head_dim} is none of {_listed(HEAD_DIMS)}"
        if self.block_size not in BLOCK_SIZES:
            return f"block_size {self.block_size} is none of {_listed(BLOCK_SIZES)}"
        if self.dtype not in (torch.bfloat16, torch.float16):
            return f"dtype {self.dtype} is neither bfloat16 nor float16"
        if self.cache_dtype not in (self.dtype, torch.float8_e4m3fn):
            return f"a cache of {self.cache_dtype} for {self.dtype}"
        return None


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(str(value) for value in values)


@dataclass(frozen=True, slots=True)
class Instances:
    """Names of the kernels for a shape."""

    decode: str
    combine: str
    prefill: str

    @classmethod
    def of(cls, shape: Shape, uses_tensor_cores: bool) -> "Instances":
        """uses_tensor_cores: for one query a sequence."""
        types = f"{c_name(shape.dtype)}, {c_name(shape.cache_dtype)}, {shape.head_dim}, {shape.group}"
        return cls(
            decode=f"tokenbus::decode_{'mma' if uses_tensor_cores else 'simt'}<{types}>",
            combine=f"tokenbus::combine_splits<{c_name(shape.dtype)}, {shape.head_dim}>",
            prefill=f"tokenbus::prefill_mma<{types}, {prefill_columns(shape.head_dim)}>",
        )

    def names(self) -> list[str]:
        """All of them."""
        return [self.decode, self.combine, self.prefill]


def prefill_columns(head_dim: int) -> int:
    """Keys that pass by at once: fewer where a thread has many sums."""
    return 32 if head_dim > 128 else 64


@dataclass(frozen=True, slots=True)
class DeviceItems:
    """Items on the device, and how many of them a launch has. decode: int32 [.., 4], -1 in those that are not used.
    Others as those of Items."""

    decode: Tensor
    splits: Tensor
    prefill: Tensor
    num_decode: int
    num_prefill: int
    is_split: bool

    @classmethod
    def of(cls, items: Items, device: torch.device | str = "cpu") -> "DeviceItems":
        """Copies of their own, just large enough."""
        decode, splits, prefill = (
            torch.from_numpy(array).to(device) for array in (items.decode, items.splits, items.prefill)
        )
        return cls(decode, splits, prefill, len(items.decode), len(items.prefill), items.num_slots > 0)


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step on the device. cu_seqlens_q: int32 [S + 1], context_lens: int32 [S], block_tables: int32 [S, B]."""

    cu_seqlens_q: Tensor
    context_lens: Tensor
    block_tables: Tensor
    items: DeviceItems


class PagedAttention:
    """One operation for a model's layers, called once a layer. Raises ValueError for a shape that has no kernel.

    num_parallel: blocks of threads that the device runs at a time. uses_tensor_cores: for one query a sequence; by
    default where a group has more than two heads.
    """

    def __init__(
        self,
        load: LoadKernels,
        shape: Shape,
        max_num_seqs: int,
        num_parallel: int,
        device: torch.device | str = "cpu",
        uses_tensor_cores: bool | None = None,
    ) -> None:
        problem = shape.problem()
        if problem is not None:
            raise ValueError(problem)
        if uses_tensor_cores is False and shape.group > _WIDEST_PLAIN_GROUP:
            raise ValueError(f"groups of {shape.group} heads need tensor cores")
        self._shape = shape
        self._uses_tensor_cores = shape.group > _NARROW_GROUP if uses_tensor_cores is None else uses_tensor_cores
        self._instances = Instances.of(shape, self._uses_tensor_cores)
        self._module = load(SOURCE, self._instances.names())
        num_slots = most_decode_items(max_num_seqs, num_parallel, shape.num_kv_heads)
        self._sums = torch.empty((num_slots, shape.num_heads, shape.head_dim), dtype=torch.float32, device=device)
        self._stats = torch.empty((num_slots, shape.num_heads, 2), dtype=torch.float32, device=device)

    def __call__(
        self,
        out: Tensor,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        step: DeviceStep,
        sliding_window: int = 0,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> None:
        """out: dtype [T, H, D], contiguous; query: dtype [T, H, D], heads contiguous; caches: cache_dtype [N, B, K, D],
        any strides that both share, the last 1; scales: float32 [K], what a number of the cache is multiplied by.
        Writes nothing for a token that belongs to no item."""
        shape, items = self._shape, step.items
        block_stride, token_stride, head_stride, _ = key_cache.stride()
        cache: tuple[Argument, ...] = (key_cache, value_cache, key_scales, value_scales)
        tables: tuple[Argument, ...] = (step.block_tables, step.cu_seqlens_q, step.context_lens)
        rest: tuple[Argument, ...] = (
            np.int32(step.block_tables.stride(0)),
            np.int32(shape.block_size.bit_length() - 1),
            *(np.int64(stride) for stride in (query.stride(0), block_stride, token_stride, head_stride)),
            np.float32(shape.scale),
            np.float32(shape.soft_cap),
            np.int32(sliding_window),
        )
        if items.num_decode:
            self._module.launch(
                self._instances.decode,
                (items.num_decode, shape.num_kv_heads, 1),
                (_THREADS, 1, 1),
                (out, self._sums, self._stats, query, *cache, items.decode, *tables, *rest),
                decode_shared_bytes(shape) if self._uses_tensor_cores else 0,
            )
        if items.is_split:
            num_sequences = len(items.splits)
            self._module.launch(
                self._instances.combine,
                (-(-num_sequences * shape.num_heads // _WARPS), 1, 1),
                (_THREADS, 1, 1),
                (
                    out,
                    self._sums,
                    self._stats,
                    items.splits,
                    step.cu_seqlens_q,
                    np.int32(shape.num_heads),
                    np.int32(num_sequences),
                ),
            )
        if items.num_prefill:
            self._module.launch(
                self._instances.prefill,
                (items.num_prefill, shape.num_kv_heads, 1),
                (_THREADS, 1, 1),
                (out, query, *cache, items.prefill, *tables, *rest),
                prefill_shared_bytes(shape),
            )


def decode_shared_bytes(shape: Shape) -> int:
    """Dynamic shared memory of decode_mma: queries, and each warp's ring; or what the merge needs, if that is more."""
    kept, wide = shape.cache_dtype.itemsize, shape.dtype.itemsize
    kept_tile = TILE_TOKENS * (shape.head_dim * kept + 16)
    wide_tile = TILE_TOKENS * (shape.head_dim * wide + 16)
    ring = 2 * _STAGES * kept_tile + (wide_tile if kept != wide else 0)
    merge = 4 * _WARPS * shape.group * (shape.head_dim + 2)
    return max(wide_tile + _WARPS * ring, merge)


def prefill_shared_bytes(shape: Shape) -> int:
    """Dynamic shared memory of prefill_mma."""
    kept, wide = shape.cache_dtype.itemsize, shape.dtype.itemsize
    columns = prefill_columns(shape.head_dim)
    wide_row = shape.head_dim * wide + 16
    tiles = 2 * columns * (shape.head_dim * kept + 16) + (columns * wide_row if kept != wide else 0)
    return PREFILL_ROWS * wide_row + tiles
