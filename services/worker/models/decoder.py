"""A decoder-only transformer: embedding, layers, final norm, logits of the rows that are sampled."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.models.layers import Attention, DecoderLayer, FeedForward, Linear, RmsNorm, StepContext
from services.worker.models.parameters import Parameters
from services.worker.models.share import Communicator, Share
from shared.repository.config import ModelConfig

EMBEDDING_NAME = "model.embed_tokens.weight"
HEAD_NAME = "lm_head.weight"
_NUM_EXACT_LOGITS = 16

BuildAttention = Callable[[ModelConfig, Parameters, int], Attention]


@dataclass(frozen=True, slots=True)
class Decoder:
    """embedding: [vocabulary, hidden size]; lm_head is the same tensor where the model ties them. share: of a model
    that several ranks compute together, None for a whole one."""

    embedding: Tensor
    layers: list[DecoderLayer]
    final_norm: RmsNorm
    lm_head: Linear
    share: Share | None = None

    def shared(self, vocab_size: int, communicator: Communicator | None) -> "Decoder":
        """As a rank's share of a model with this vocabulary; as it is if there is no group."""
        return self if communicator is None else replace(self, share=Share(communicator, vocab_size))

    @property
    def is_tied(self) -> bool:
        """Whether embedding and lm_head are one matrix."""
        return self.lm_head.weight is self.embedding

    def windows(self) -> set[int | None]:
        """The sliding windows of the layers: each needs an attention plan of its own."""
        return {layer.attention.sliding_window for layer in self.layers}

    def __call__(self, token_ids: Tensor, step: StepContext, kv_cache: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Computes all tokens, writes their keys and values, returns float32 logits [R, vocabulary] of some rows and
        the float32 residual [T, hidden size] that the last feed-forward reads.

        token_ids: int64 [T]. kv_cache: [layers, 2, N, B, K, D], keys then values. rows: int64 [R], indices into T.
        An id that is not in the vocabulary turns its own sequence's logits into NaN, nobody else's. A residual only
        grows by sums, so a token whose residual is finite here has finite keys and values in every layer.
        """
        residual = self._embed(token_ids)
        normed = self.layers[0].attention_norm(residual)
        next_norms = [*(layer.attention_norm for layer in self.layers[1:]), None]
        for layer, caches, next_norm in zip(self.layers, kv_cache, next_norms, strict=True):
            attended = self._added_up(layer.attention(normed, step, caches[0], caches[1]))
            normed = layer.feed_forward_norm.after_adding(attended, residual)
            advanced = self._added_up(layer.feed_forward(normed))
            if next_norm is not None:
                normed = next_norm.after_adding(advanced, residual)
        sampled = self.final_norm.after_adding(advanced[rows], residual[rows])
        logits = self._logits(sampled)
        return logits if self.share is None else self.share.whole_logits(logits), residual

    def _added_up(self, part: Tensor) -> Tensor:
        """What goes to the residual: float32 where it is a sum of several ranks' parts."""
        return part if self.share is None else self.share.communicator.add_up(part.float())

    def _logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocabulary] for hidden [R, hidden size]; of a share its own columns.

        A product of bfloat16 comes out rounded to 8 bits, where the two likeliest tokens are often equal; so the
        largest logits are computed once more in float32.
        """
        logits = self.lm_head(hidden).float()
        if hidden.dtype == torch.float32:
            return logits
        likely = logits.topk(min(_NUM_EXACT_LOGITS, logits.shape[1]), dim=-1).indices
        exact = torch.einsum("rkh,rh->rk", self.lm_head.weight[likely].float(), hidden.float())
        return logits.scatter_(1, likely, exact)

    def _embed(self, token_ids: Tensor) -> Tensor:
        """float32 [T, hidden size]."""
        if self.share is not None:
            return self.share.embed(token_ids, self.embedding)
        unknown = (token_ids < 0) | (token_ids >= len(self.embedding))
        if not unknown.any():
            return functional.embedding(token_ids, self.embedding).float()
        hidden = functional.embedding(token_ids.masked_fill(unknown, 0), self.embedding).float()
        return hidden.masked_fill_(unknown.unsqueeze(1), float("nan"))


def build_decoder(config: ModelConfig, parameters: Parameters, build_attention: BuildAttention) -> Decoder:
    """Takes all of a model's weights; build_attention makes a layer's attention, where the families differ."""
    embedding = parameters.take(EMBEDDING_NAME)
    is_tied = config.tie_word_embeddings
    layers = []
    for index in range(config.num_hidden_layers):
        prefix = f"model.layers.{index}."
        layers.append(
            DecoderLayer(
                attention_norm=rms_norm_of(config, parameters, prefix + "input_layernorm.weight"),
                attention=build_attention(config, parameters, index),
                feed_forward_norm=rms_norm_of(config, parameters, prefix + "post_attention_layernorm.weight"),
                feed_forward=_build_feed_forward(config, parameters, prefix + "mlp."),
            )
        )
    return Decoder(
        embedding=embedding,
        layers=layers,
        final_norm=rms_norm_of(config, parameters, "model.norm.weight"),
        lm_head=Linear(
            embedding if is_tied else parameters.take(HEAD_NAME), names=(EMBEDDING_NAME if is_tied else HEAD_NAME,)
        ),
    )


def rms_norm_of(config: ModelConfig, parameters: Parameters, name: str) -> RmsNorm:
    """The norm with the weight of this name."""
    return RmsNorm(parameters.take(name), config.rms_norm_eps, parameters.dtype)


def fused_projection(parameters: Parameters, prefix: str, names: tuple[str, ...], has_bias: bool) -> Linear:
    """Several projections of the same input as one."""
    weights = tuple(f"{prefix}{name}.weight" for name in names)
    bias: torch.Tensor | None = None
    if has_bias:
        bias = parameters.take_fused(*(f"{prefix}{name}.bias" for name in names))
    return Linear(parameters.take_fused(*weights), bias, weights)


def query_key_value(parameters: Parameters, layer: int, has_bias: bool) -> Linear:
    """The fused projection to query, key and value heads of a layer."""
    return fused_projection(parameters, f"model.layers.{layer}.self_attn.", ("q_proj", "k_proj", "v_proj"), has_bias)


def attention_output(parameters: Parameters, layer: int, has_bias: bool = False) -> Linear:
    """The projection of a layer's attention back to the hidden size."""
    return fused_projection(parameters, f"model.layers.{layer}.self_attn.", ("o_proj",), has_bias)


def _build_feed_forward(config: ModelConfig, parameters: Parameters, prefix: str) -> FeedForward:
    return FeedForward(
        gate_up=fused_projection(parameters, prefix, ("gate_proj", "up_proj"), config.mlp_bias),
        down=fused_projection(parameters, prefix, ("down_proj",), config.mlp_bias),
    )
