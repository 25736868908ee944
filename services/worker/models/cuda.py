"""A decoder on a device: torch's matrix products, our kernels for the rest, in memory that is claimed once.

The device may be a processor: then the kernels are those of whoever loads them, in tests an emulator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels
from kernels.kv_cache_write.cuda import KvCacheWrite
from kernels.paged_attention.cuda import DeviceItems, DeviceStep, PagedAttention, Shape
from kernels.rms_norm.cuda import RmsNorm, RmsNormHeads
from kernels.rope.cuda import Rope
from kernels.silu_and_mul.cuda import SiluAndMul
from services.worker.models.decoder import Decoder
from services.worker.models.layers import Attention, DecoderLayer, Linear
from services.worker.models.quantised import PackedLinear, QuantisedProducts

_BLOCKS_OF_PROCESSOR = 2  # of those that Limits.num_parallel counts


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step's columns on the device: T tokens of S sequences, R of them sampled.

    token_ids, positions, slot_mapping: int64 [T]. row_tokens: int64 [R], indices into T. cu_seqlens_q: int32 [S + 1],
    context_lens: int32 [S], block_tables: int32 [S, B]. items: by sliding window, None for full attention.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    row_tokens: Tensor
    cu_seqlens_q: Tensor
    context_lens: Tensor
    block_tables: Tensor
    items: Mapping[int | None, DeviceItems]

    def for_window(self, window: int | None) -> DeviceStep:
        """What the attention of a layer with this window reads."""
        return DeviceStep(self.cu_seqlens_q, self.context_lens, self.block_tables, self.items[window])


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a step. num_parallel: blocks of threads that the device runs at a time."""

    max_num_tokens: int
    max_num_seqs: int
    num_parallel: int


class Workspace:
    """A step's activations. residual: float32 [T, hidden]; heads: [T, H + 2 K, D], queries, keys, values; others
    [T, ..]. Of sampled tokens: kept_residual, kept_attended, [R, ..]."""

    def __init__(self, attention: Attention, hidden_size: int, inner_size: int, limits: Limits, like: Tensor) -> None:
        """like: any weight, for dtype and device."""
        tokens, rows = limits.max_num_tokens, limits.max_num_seqs
        width = attention.num_heads * attention.head_dim
        num_heads = attention.num_heads + 2 * attention.num_kv_heads
        self.residual = like.new_empty((tokens, hidden_size), dtype=torch.float32)
        self.normed = like.new_empty((tokens, hidden_size))
        self.projected = like.new_empty((tokens, hidden_size))
        self.heads = like.new_empty((tokens, num_heads, attention.head_dim))
        self.attended = like.new_empty((tokens, width))
        self.gate_up = like.new_empty((tokens, 2 * inner_size))
        self.activated = like.new_empty((tokens, inner_size))
        self.kept_residual = like.new_empty((rows, hidden_size), dtype=torch.float32)
        self.kept_attended = like.new_empty((rows, width))


class CudaDecoder:
    """Takes over a decoder's weights, which lie on the device. Raises ValueError for a shape without a kernel."""

    def __init__(
        self,
        decoder: Decoder,
        cos_sin: Tensor,
        cache_dtype: torch.dtype,
        block_size: int,
        limits: Limits,
        load: LoadKernels,
    ) -> None:
        """cos_sin: float32 [positions, D] on the device. cache_dtype: of the KV cache."""
        attention, dtype = decoder.layers[0].attention, decoder.embedding.dtype
        hidden_size = decoder.embedding.shape[1]
        inner_size = decoder.layers[0].feed_forward.down.weight.shape[1]
        shape = Shape(
            dtype=dtype,
            cache_dtype=cache_dtype,
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            block_size=block_size,
            scale=attention.head_dim**-0.5,
        )
        device = decoder.embedding.device
        self.decoder = decoder
        self._cos_sin = cos_sin
        self._attend = PagedAttention(load, shape, limits.max_num_seqs, limits.num_parallel, device)
        self._norm = RmsNorm(load, dtype, hidden_size)
        self._norm_heads = RmsNormHeads(load, dtype, attention.head_dim)
        self._rope = Rope(load, dtype, attention.num_heads + attention.num_kv_heads, attention.head_dim)
        self._write = KvCacheWrite(load, dtype, cache_dtype, attention.head_dim)
        self._silu = SiluAndMul(load, dtype, inner_size)
        self._space = Workspace(attention, hidden_size, inner_size, limits, decoder.embedding)
        self._quantised = QuantisedProducts(
            load, decoder, dtype, limits.max_num_tokens, max(1, limits.num_parallel // _BLOCKS_OF_PROCESSOR)
        )

    @torch.inference_mode()
    def __call__(self, step: StepTensors, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Computes all tokens, writes their keys and values.

        kv_cache: [layers, 2, N, B, K, D]. Returns float32 logits [R, vocabulary] and whether each token's keys and
        values are finite in every layer, bool [T]. An id that is not in the vocabulary turns its own sequence's values
        into NaN, nobody else's.
        """
        residual = self._embed(step.token_ids)
        added: Tensor | None = None
        for layer, caches in zip(self.decoder.layers, kv_cache, strict=True):
            normed = self._normed(residual, layer.attention_norm.weight, layer.attention_norm.eps, added)
            attended = self._attention(layer.attention, normed, step, caches[0], caches[1])
            if layer is self.decoder.layers[-1]:
                is_finite = torch.isfinite(residual.sum(dim=1) + self._added_up(attended.float().sum(dim=1)))
                residual, attended = self._keep_sampled(residual, attended, step.row_tokens)
            added = self._feed_forward(layer, residual, attended)
        norm = self.decoder.final_norm
        sampled = self._normed(residual, norm.weight, norm.eps, added)
        is_finite[step.row_tokens] &= torch.isfinite(residual.sum(dim=1))
        logits, share = _wide_product(sampled, self.decoder.lm_head.weight), self.decoder.share
        return logits if share is None else share.whole_logits(logits), is_finite

    def _embed(self, token_ids: Tensor) -> Tensor:
        embedding, share = self.decoder.embedding, self.decoder.share
        residual = self._space.residual[: len(token_ids)]
        if share is not None:
            return residual.copy_(share.embed(token_ids, embedding))
        unknown = (token_ids < 0) | (token_ids >= len(embedding))
        residual.copy_(embedding[token_ids.masked_fill(unknown, 0)])
        return residual.masked_fill_(unknown.unsqueeze(1), float("nan"))

    def _normed(self, residual: Tensor, weight: Tensor, eps: float, added: Tensor | None) -> Tensor:
        """Of the residual once `added` is in it."""
        normed = self._space.normed[: len(residual)]
        self._norm(normed, residual, weight, eps, added)
        return normed

    def _attention(
        self, attention: Attention, normed: Tensor, step: StepTensors, key_cache: Tensor, value_cache: Tensor
    ) -> Tensor:
        """What the heads attended to, [T, H * D], before the projection back."""
        num_tokens, num_turned = len(normed), attention.num_heads + attention.num_kv_heads
        heads = self._space.heads[:num_tokens]
        self._product(heads.flatten(1), normed, attention.query_key_value)
        query, key = heads[:, : attention.num_heads], heads[:, attention.num_heads : num_turned]
        if attention.query_norm is not None and attention.key_norm is not None:
            self._norm_heads(query, attention.query_norm.weight, attention.query_norm.eps)
            self._norm_heads(key, attention.key_norm.weight, attention.key_norm.eps)
        self._rope(heads.flatten(1), self._cos_sin, step.positions)
        self._write(key_cache, value_cache, key, heads[:, num_turned:], step.slot_mapping)
        attended = self._space.attended[:num_tokens]
        window = attention.sliding_window
        self._attend(
            attended.view(num_tokens, attention.num_heads, attention.head_dim),
            query,
            key_cache,
            value_cache,
            step.for_window(window),
            window or 0,
        )
        return attended

    def _keep_sampled(self, residual: Tensor, attended: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Once the last layer's keys and values are written and read, only sampled tokens have anything left to do."""
        kept_residual, kept_attended = (
            kept[: len(rows)] for kept in (self._space.kept_residual, self._space.kept_attended)
        )
        torch.index_select(residual, 0, rows, out=kept_residual)
        torch.index_select(attended, 0, rows, out=kept_attended)
        return kept_residual, kept_attended

    def _feed_forward(self, layer: DecoderLayer, residual: Tensor, attended: Tensor) -> Tensor:
        """What the layer adds to the residual besides its attention, which is added here."""
        num_tokens, space = len(residual), self._space
        projected = space.projected[:num_tokens]
        self._product(projected, attended, layer.attention.output)
        self._added_up(projected)
        normed = self._normed(residual, layer.feed_forward_norm.weight, layer.feed_forward_norm.eps, projected)
        gate_up, activated = space.gate_up[:num_tokens], space.activated[:num_tokens]
        self._product(gate_up, normed, layer.feed_forward.gate_up)
        self._silu(activated, gate_up)
        self._product(projected, activated, layer.feed_forward.down)
        return self._added_up(projected)

    def _added_up(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in place."""
        return part if self.decoder.share is None else self.decoder.share.communicator.add_up(part)

    def _product(self, out: Tensor, x: Tensor, linear: Linear) -> None:
        """[T, n_in] to out, [T, n_out]."""
        if isinstance(linear, PackedLinear) and linear.packed is not None:
            self._quantised(out, x, linear, linear.packed)
        elif linear.bias is None:
            torch.mm(x, linear.weight.t(), out=out)
        else:
            torch.addmm(linear.bias, x, linear.weight.t(), out=out)


def _wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """float32, never rounded to x's dtype: the two likeliest tokens would often come out equal."""
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return x.float() @ weight.float().t()
