"""Layers that the families share. Each is its weights and the operation on them; there is no training."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.kv_cache_write.cpu import kv_cache_write
from kernels.paged_attention.cpu import paged_attention
from kernels.paged_attention.plan import AttentionPlan
from kernels.rms_norm.cpu import add_rms_norm, rms_norm
from kernels.rope.cpu import rope
from kernels.silu_and_mul.cpu import silu_and_mul


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers of one step share.

    cos_sin: float32 [T, D], RoPE's table at the tokens' positions. slot_mapping: int64 [T].
    plans: the attention plan for each sliding window that the model has (None: full attention).
    """

    cos_sin: Tensor
    slot_mapping: Tensor
    plans: dict[int | None, AttentionPlan]


@dataclass(frozen=True, slots=True)
class Linear:
    """weight: [n_out, n_in], bias: [n_out] or None. names: of the parameters that weight stacks."""

    weight: Tensor
    bias: Tensor | None = None
    names: tuple[str, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """[..., n_in] to [..., n_out]."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """weight: float32 [n]. dtype: of what comes out."""

    weight: Tensor
    eps: float
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """[..., n] normalised over the last dimension."""
        return rms_norm(x, self.weight, self.eps, self.dtype)

    def after_adding(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds x to residual, float32, in place; returns the sum normalised."""
        return add_rms_norm(x, residual, self.weight, self.eps)[0].to(self.dtype)


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the paged KV cache.

    query_key_value: one projection to H query heads, then K key and K value heads of D values.
    query_norm, key_norm: over a head's D values, before RoPE. sliding_window: tokens seen, itself included.
    """

    query_key_value: Linear
    output: Linear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    query_norm: RmsNorm | None = None
    key_norm: RmsNorm | None = None

    def __call__(self, hidden: Tensor, step: StepContext, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        """hidden: [T, hidden size]; key_cache, value_cache: [N, B, K, D] of this layer. Returns [T, hidden size]."""
        num_turned = self.num_heads + self.num_kv_heads
        heads = self.query_key_value(hidden).view(-1, num_turned + self.num_kv_heads, self.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            heads[:, : self.num_heads] = self.query_norm(heads[:, : self.num_heads])
            heads[:, self.num_heads : num_turned] = self.key_norm(heads[:, self.num_heads : num_turned])
        turned = rope(heads[:, :num_turned], step.cos_sin)
        query, key = turned[:, : self.num_heads], turned[:, self.num_heads :]
        kv_cache_write(key, heads[:, num_turned:], key_cache, value_cache, step.slot_mapping)
        plan = step.plans[self.sliding_window]
        attended = paged_attention(query, key_cache, value_cache, plan, self.head_dim**-0.5)
        return self.output(attended.reshape(-1, self.num_heads * self.head_dim))


@dataclass(frozen=True, slots=True)
class FeedForward:
    """SwiGLU. gate_up: [2 * inner, hidden size], the gate first. down: [hidden size, inner]."""

    gate_up: Linear
    down: Linear

    def __call__(self, hidden: Tensor) -> Tensor:
        """[T, hidden size] to [T, hidden size]."""
        return self.down(silu_and_mul(self.gate_up(hidden)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each behind its norm and beside the residual."""

    attention_norm: RmsNorm
    attention: Attention
    feed_forward_norm: RmsNorm
    feed_forward: FeedForward
