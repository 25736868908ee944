"""From a decoder's layers to the same model in C++; the families need no word of it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels.decoder.model import LayerWeights, NativeModel, Shape
from kernels.linear.arena import WeightArena, room_for
from kernels.linear.packing import PackedLinear, gate_up_order
from kernels.native.library import Library
from services.worker.models.decoder import EMBEDDING_NAME, Decoder
from services.worker.models.layers import DecoderLayer, FeedForward, Linear
from services.worker.models.packers import Packer

_INNER_UNIT = 16

Place = Callable[[PackedLinear], PackedLinear]


def padded_inner_size(inner_size: int) -> int:
    """Columns of the gate as the C++ kernels want them; the padding is zero and stays so."""
    return -(-inner_size // _INNER_UNIT) * _INNER_UNIT


def build_native(
    decoder: Decoder, shape: Shape, cos_sin: Tensor, packer: Packer, num_threads: int, library: Library
) -> NativeModel:
    """Packs the decoder's weights layer by layer, taking each from it, so that memory never holds all of them twice.

    The decoder is of no use afterwards.
    """
    place = WeightArena(_room(decoder, shape.inner_size)).place
    lm_head = place(packer.pack_head(decoder.lm_head))
    embedding = lm_head
    if not decoder.is_tied:
        embedding = place(packer.pack_head(Linear(decoder.embedding, names=(EMBEDDING_NAME,))))
    layers = []
    while decoder.layers:
        layers.append(_pack_layer(decoder.layers.pop(0), shape.inner_size, packer, place))
    return NativeModel(shape, layers, decoder.final_norm.weight, embedding, lm_head, cos_sin, num_threads, library)


def _room(decoder: Decoder, inner_size: int) -> int:
    """Bytes for all of the decoder's matrices, a tied embedding once."""
    shapes = [decoder.lm_head.weight.shape]
    if not decoder.is_tied:
        shapes.append(decoder.embedding.shape)
    for layer in decoder.layers:
        hidden_size = layer.feed_forward.down.weight.shape[0]
        shapes += [layer.attention.query_key_value.weight.shape, layer.attention.output.weight.shape]
        shapes += [torch.Size((2 * inner_size, hidden_size)), torch.Size((hidden_size, inner_size))]
    return sum(room_for(*shape) for shape in shapes)


def _pack_layer(layer: DecoderLayer, inner_size: int, packer: Packer, place: Place) -> LayerWeights:
    attention = layer.attention
    gate_up, down = _padded(layer.feed_forward, inner_size)
    return LayerWeights(
        attention_norm=layer.attention_norm.weight,
        query_key_value=place(packer.pack(attention.query_key_value)),
        output=place(packer.pack(attention.output)),
        feed_forward_norm=layer.feed_forward_norm.weight,
        gate_up=place(packer.pack(gate_up, gate_up_order(inner_size))),
        down=place(packer.pack(down)),
        query_norm=None if attention.query_norm is None else attention.query_norm.weight,
        key_norm=None if attention.key_norm is None else attention.key_norm.weight,
        sliding_window=attention.sliding_window,
    )


def _padded(feed_forward: FeedForward, inner_size: int) -> tuple[Linear, Linear]:
    """gate_up and down with zeros up to inner_size."""
    gate_up, down = feed_forward.gate_up, feed_forward.down
    missing = inner_size - down.weight.shape[1]
    if missing == 0:
        return gate_up, down
    weight = torch.cat([functional.pad(half, (0, 0, 0, missing)) for half in gate_up.weight.chunk(2)])
    bias = gate_up.bias
    if bias is not None:
        bias = torch.cat([functional.pad(half, (0, missing)) for half in bias.chunk(2)])
    return Linear(weight, bias, gate_up.names), Linear(functional.pad(down.weight, (0, missing)), down.bias, down.names)
