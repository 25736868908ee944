"""A layer's projections by name, and the layer with others in their place."""

from dataclasses import replace

from torch import Tensor

from services.worker.models.layers import DecoderLayer, Linear

PROJECTIONS = ("query_key_value", "output", "gate_up", "down")
_OF_ATTENTION = ("query_key_value", "output")


def projection(layer: DecoderLayer, name: str) -> Linear:
    """One of PROJECTIONS."""
    found: Linear = getattr(layer.attention if name in _OF_ATTENTION else layer.feed_forward, name)
    return found


def with_projection(layer: DecoderLayer, name: str, linear: Linear) -> DecoderLayer:
    """The layer with another one in its place."""
    attention, feed_forward = layer.attention, layer.feed_forward
    if name == "query_key_value":
        return replace(layer, attention=replace(attention, query_key_value=linear))
    if name == "output":
        return replace(layer, attention=replace(attention, output=linear))
    if name == "gate_up":
        return replace(layer, feed_forward=replace(feed_forward, gate_up=linear))
    return replace(layer, feed_forward=replace(feed_forward, down=linear))


def with_weight(layer: DecoderLayer, name: str, weight: Tensor, bias: Tensor | None = None) -> DecoderLayer:
    """The layer with another weight in a projection. bias: None for the one that is there."""
    linear = projection(layer, name)
    return with_projection(layer, name, replace(linear, weight=weight, bias=linear.bias if bias is None else bias))
