"""A decoder whose steps run in C++: weights, KV cache and threads behind one call."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.decoder.structs import DecoderStruct, LayerStruct, StepStruct
from kernels.linear.packing import PackedLinear
from kernels.native.library import Library
from kernels.native.memory import zeros_in_huge_pages
from kernels.paged_attention.packed import MAX_HEAD_DIM


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms: float32 [hidden size]; query_norm and key_norm: float32 [D] or None. sliding_window: None for all tokens.

    gate_up: its rows in packing.gate_up_order.
    """

    attention_norm: Tensor
    query_key_value: PackedLinear
    output: PackedLinear
    feed_forward_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    sliding_window: int | None = None

    def struct(self) -> LayerStruct:
        """The C++ view of it."""
        return LayerStruct(
            self.attention_norm.data_ptr(),
            None if self.query_norm is None else self.query_norm.data_ptr(),
            None if self.key_norm is None else self.key_norm.data_ptr(),
            self.feed_forward_norm.data_ptr(),
            self.query_key_value.struct(),
            self.output.struct(),
            self.gate_up.struct(),
            self.down.struct(),
            self.sliding_window or 0,
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model and bounds of its steps. inner_size: as gate_up and down have it, padding included."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner_size: int
    vocab_size: int
    eps: float
    block_size: int
    num_blocks: int
    max_num_tokens: int
    max_num_seqs: int

    def problem(self) -> str | None:
        """Why the C++ kernels cannot compute such a model, if they cannot."""
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        for name, value, unit in (
            ("hidden_size", self.hidden_size, 32),
            ("head_dim", self.head_dim, 16),
            ("heads * head_dim", heads, 32),
            ("block_size", self.block_size, 16),
            ("inner_size", self.inner_size, 16),
        ):
            if value % unit:
                return f"{name} {value} is not a multiple of {unit}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"head_dim {self.head_dim} is more than {MAX_HEAD_DIM}"
        return None


class NativeModel:
    """Keeps all that the C++ side points at. kv_cache: bfloat16 [layers, 2, num_blocks, K, block_size * D], packed."""

    def __init__(
        self,
        shape: Shape,
        layers: Sequence[LayerWeights],
        final_norm: Tensor,
        embedding: PackedLinear,
        lm_head: PackedLinear,
        cos_sin: Tensor,
        num_threads: int,
        library: Library,
    ) -> None:
        """cos_sin: float32 [positions, D]."""
        self.level = library.level
        self.functions = library.functions
        self.vocab_size, self.max_num_seqs = shape.vocab_size, shape.max_num_seqs
        block = (shape.num_kv_heads, shape.block_size * shape.head_dim)
        self.kv_cache = zeros_in_huge_pages((len(layers), 2, shape.num_blocks, *block), torch.bfloat16)
        self._shape = shape
        self._kept = (list(layers), final_norm, embedding, lm_head, cos_sin)
        self._num_positions = len(cos_sin)
        self._structs = (LayerStruct * len(layers))(*(layer.struct() for layer in layers))
        self._decoder = DecoderStruct(
            len(layers),
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.inner_size,
            shape.vocab_size,
            shape.block_size,
            shape.max_num_tokens,
            shape.max_num_seqs,
            shape.eps,
            shape.head_dim**-0.5,
            self._structs,
            final_norm.data_ptr(),
            embedding.struct(),
            lm_head.struct(),
            cos_sin.data_ptr(),
            self.kv_cache.data_ptr(),
            shape.num_blocks,
        )
        self._engine = self.functions.tokenbus_engine_new(ctypes.byref(self._decoder), num_threads)

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self.functions.tokenbus_engine_delete(self._engine)

    @property
    def team(self) -> int:
        """The C++ Team of the engine's threads, for other kernels between steps."""
        return int(self.functions.tokenbus_engine_team(self._engine))

    def step(self, step: StepStruct) -> None:
        """Computes a step that check has passed. Not reentrant; the GIL is free meanwhile."""
        self.functions.tokenbus_engine_step(self._engine, ctypes.byref(step))

    def products(self, num_rows: int, output: Tensor) -> None:
        """Only the matrix products of a step of num_rows sampled tokens; output: bfloat16, room for num_rows logits."""
        self.functions.tokenbus_engine_products(self._engine, num_rows, output.data_ptr())

    def attention(self, step: StepStruct) -> None:
        """Only the attention of a step."""
        self.functions.tokenbus_engine_attention(self._engine, ctypes.byref(step))

    def check(
        self,
        num_rows: int,
        positions: NDArray[np.int64],
        slot_mapping: NDArray[np.int64],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> None:
        """Raises IndexError on what would reach beyond the engine's memory."""
        shape = self._shape
        _check_range("position", positions, 0, self._num_positions)
        _check_range("slot", slot_mapping, -1, shape.num_blocks * shape.block_size)
        _check_range("block", block_tables, 0, shape.num_blocks)
        _check_range("context_lens", context_lens, 1, block_tables.shape[1] * shape.block_size + 1)
        if len(positions) > shape.max_num_tokens or max(len(context_lens), num_rows) > shape.max_num_seqs:
            raise IndexError(
                f"a step of {len(positions)} tokens and {len(context_lens)} sequences is more than "
                f"max_num_batched_tokens {shape.max_num_tokens} or max_num_seqs {shape.max_num_seqs}"
            )


def _check_range(name: str, values: NDArray[Any], first: int, end: int) -> None:
    if len(values) and not (first <= int(values.min()) and int(values.max()) < end):
        raise IndexError(f"{name} of {int(values.min())} to {int(values.max())} is not within [{first}, {end})")
