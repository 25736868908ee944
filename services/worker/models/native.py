"""From a decoder's layers to the same model in C++; the families need no word of it."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.decoder.model import LayerWeights, NativeModel, Shape
from kernels.linear.packing import PackedLinear, gate_up_order, pack_bf16
from kernels.native.isa import Level
from services.worker.models.decoder import Decoder
from services.worker.models.layers import DecoderLayer, FeedForward, Linear

_INNER_UNIT = 16


def padded_inner_size(inner_size: int) -> int:
    """Columns of the gate as the C++ kernels want them; the padding is zero and stays so."""
    return -(-inner_size // _INNER_UNIT) * _INNER_UNIT


def build_native(decoder: Decoder, shape: Shape, cos_sin: Tensor, num_threads: int, level: Level | None) -> NativeModel:
    """Packs the decoder's weights layer by layer, taking each from it, so that memory never holds all of them twice.

    Raises BuildError.
    """
    lm_head = _pack(decoder.lm_head)
    is_tied = decoder.lm_head.weight is decoder.embedding
    embedding = lm_head if is_tied else pack_bf16(decoder.embedding)
    layers = []
    while decoder.layers:
        layers.append(_pack_layer(decoder.layers.pop(0), shape.inner_size))
    return NativeModel(shape, layers, decoder.final_norm.weight, embedding, lm_head, cos_sin, num_threads, level)


def _pack_layer(layer: DecoderLayer, inner_size: int) -> LayerWeights:
    attention = layer.attention
    gate_up, down = _pack_feed_forward(layer.feed_forward, inner_size)
    return LayerWeights(
        attention_norm=layer.attention_norm.weight,
        query_key_value=_pack(attention.query_key_value),
        output=_pack(attention.output),
        feed_forward_norm=layer.feed_forward_norm.weight,
        gate_up=gate_up,
        down=down,
        query_norm=None if attention.query_norm is None else attention.query_norm.weight,
        key_norm=None if attention.key_norm is None else attention.key_norm.weight,
        sliding_window=attention.sliding_window,
    )


def _pack(linear: Linear) -> PackedLinear:
    return pack_bf16(linear.weight, linear.bias)


def _pack_feed_forward(feed_forward: FeedForward, inner_size: int) -> tuple[PackedLinear, PackedLinear]:
    gate_up, down = feed_forward.gate_up, feed_forward.down
    missing = inner_size - down.weight.shape[1]
    order = gate_up_order(inner_size)
    gates = torch.cat([functional.pad(half, (0, 0, 0, missing)) for half in gate_up.weight.chunk(2)])
    bias = None
    if gate_up.bias is not None:
        bias = torch.cat([functional.pad(half, (0, missing)) for half in gate_up.bias.chunk(2)])[order]
    return pack_bf16(gates[order], bias), pack_bf16(functional.pad(down.weight, (0, missing)), down.bias)
