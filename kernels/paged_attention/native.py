"""Paged attention in C++, called alone: for tests and benchmarks. (The decoder calls it within its own steps.)"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.native.isa import Level
from kernels.native.library import load_library
from kernels.paged_attention.packed import check_packable


class CacheShape(ctypes.Structure):
    """struct CacheShape of packed_cache.h."""

    _fields_ = (("block_size", ctypes.c_int32), ("num_kv_heads", ctypes.c_int32), ("head_dim", ctypes.c_int32))


class AttentionShape(ctypes.Structure):
    """struct AttentionShape of attention.h."""

    _fields_ = (
        ("cache", CacheShape),
        ("num_heads", ctypes.c_int32),
        ("sliding_window", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("num_sequences", ctypes.c_int32),
        ("table_stride", ctypes.c_int32),
        ("cu_seqlens_q", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("query", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("key_cache", ctypes.c_void_p),
        ("value_cache", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("output_stride", ctypes.c_int64),
    )


class NativeAttention:
    """Attention of one shape by a team of threads of its own; its memory is kept from step to step."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        sliding_window: int | None = None,
        level: Level | None = None,
        num_threads: int = 1,
    ) -> None:
        """Scores are scaled by head_dim ** -0.5. Raises ValueError for caches that cannot be packed, BuildError where
        the library cannot be had."""
        check_packable(block_size, head_dim)
        functions = self._functions = load_library(level).functions
        self._team = functions.tokenbus_team_new(num_threads)
        self._plan = functions.tokenbus_attention_plan_new()
        self._num_threads = num_threads
        cache = CacheShape(block_size, num_kv_heads, head_dim)
        self._shape = AttentionShape(cache, num_heads, sliding_window or 0, head_dim**-0.5)
        self._step: tuple[NDArray[np.int32], ...] = ()

    def __del__(self) -> None:
        if hasattr(self, "_plan"):
            self._functions.tokenbus_attention_plan_delete(self._plan)
            self._functions.tokenbus_team_delete(self._team)

    def plan(
        self, cu_seqlens_q: NDArray[np.int32], context_lens: NDArray[np.int32], block_tables: NDArray[np.int32]
    ) -> int:
        """Plans a step, as kernels.paged_attention says. Returns the number of tasks."""
        self._step = tuple(np.ascontiguousarray(array) for array in (cu_seqlens_q, context_lens, block_tables))
        step = _Step(len(context_lens), self._step[2].shape[1], *(array.ctypes.data for array in self._step))
        self._functions.tokenbus_attention_plan_make(
            self._plan, ctypes.byref(self._shape), ctypes.byref(step), self._num_threads
        )
        return int(self._functions.tokenbus_attention_plan_num_tasks(self._plan))

    def attend(self, queries: Sequence[Tensor], key_caches: Sequence[Tensor], value_caches: Sequence[Tensor]) -> Tensor:
        """One step of several layers: bfloat16 queries [T, H, D] and packed caches of each, all contiguous.

        Returns [layers, T, H, D]. Releases the GIL.
        """
        output = torch.empty(len(queries), *queries[0].shape, dtype=torch.bfloat16)
        stride = output.shape[2] * output.shape[3]
        layers = (_Layer * len(queries))(
            *(
                _Layer(query.data_ptr(), stride, keys.data_ptr(), values.data_ptr(), result.data_ptr(), stride)
                for query, keys, values, result in zip(queries, key_caches, value_caches, output, strict=True)
            )
        )
        self._functions.tokenbus_paged_attention(self._team, self._plan, layers, len(layers))
        return output
