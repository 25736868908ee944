"""AWQ: weights of large inputs are scaled up before they are rounded, and their inputs down (Lin et al., AWQ, 2023).

A scale s of each input goes into the weights' columns, 1 / s into the layer before: the product is the same, but the
columns that matter most are rounded more finely. s is the inputs' mean magnitude to a power, which is searched for.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from services.worker.models.layer_parts import projection, with_weight
from services.worker.models.layers import DecoderLayer, RmsNorm
from services.worker.quantize.grids import Grid, round_plainly
from services.worker.quantize.statistics import InputStatistics, output_error

_NUM_POWERS = 20


def search_scales(
    weights: Tensor, statistics: InputStatistics, grid: Grid, repeats: tuple[int, int] = (1, 1)
) -> Tensor:
    """float32 [n_in], those with which plain rounding changes the outputs least; ones if none are better.

    weights: float32 [n_out, n_in]. repeats: (r, d) where r neighbouring blocks of d inputs come from the same d outputs
    of the layer before, as the query heads of a key head do, and must share scales.
    """
    products = statistics.products
    magnitudes = _shared(statistics.magnitudes, *repeats).clamp(min=1e-6)
    best, least = torch.ones(weights.shape[1]), float("inf")
    for step in range(_NUM_POWERS):
        scales = magnitudes ** (step / _NUM_POWERS)
        scales = (scales / (scales.max() * scales.min()).sqrt()).float()
        rounded = round_plainly(weights * scales, grid).dequantise() / scales
        error = output_error(rounded - weights, products)
        if error < least:
            best, least = scales, error
    return best


def _shared(magnitudes: Tensor, num_blocks: int, size: int) -> Tensor:
    """The mean over the blocks that share scales, in the place of each."""
    if num_blocks == 1:
        return magnitudes
    blocks = magnitudes.reshape(-1, num_blocks, size)
    return blocks.mean(dim=1, keepdim=True).expand_as(blocks).reshape(-1)


def scale_layer(
    layer: DecoderLayer,
    statistics: Mapping[str, InputStatistics],
    grid: Grid,
    repeats: tuple[int, int],
    stored: torch.dtype,
) -> tuple[DecoderLayer, dict[str, Tensor]]:
    """The same layer with scaled weights, and the scales by projection: those of output go into the values' rows, of
    down into up's, of the others into the norms. statistics: by projection. repeats: (query heads of a key head,
    head_dim). stored: dtype of norms.
    """
    heads, head_dim = repeats
    scales = {
        "output": search_scales(projection(layer, "output").weight, statistics["output"], grid, repeats),
        "down": search_scales(projection(layer, "down").weight, statistics["down"], grid),
    }
    for name, used in scales.items():
        layer = with_weight(layer, name, projection(layer, name).weight * used)
    of_values = scales["output"].reshape(-1, heads, head_dim)[:, 0].reshape(-1)
    layer = _divide_last_rows(layer, "query_key_value", of_values)
    layer = _divide_last_rows(layer, "gate_up", scales["down"])
    norms: dict[str, RmsNorm] = {}
    for name, norm in (("query_key_value", layer.attention_norm), ("gate_up", layer.feed_forward_norm)):
        weight = projection(layer, name).weight
        norms[name], scales[name] = _scaled(norm, search_scales(weight, statistics[name], grid), stored)
        layer = with_weight(layer, name, weight * scales[name])
    return replace(layer, attention_norm=norms["query_key_value"], feed_forward_norm=norms["gate_up"]), scales


def _divide_last_rows(layer: DecoderLayer, name: str, scales: Tensor) -> DecoderLayer:
    """The outputs that the next projection reads: values after queries and keys, up after gate."""
    linear = projection(layer, name)
    weight, bias = linear.weight.clone(), None if linear.bias is None else linear.bias.clone()
    weight[-len(scales) :] /= scales.unsqueeze(1)
    if bias is not None:
        bias[-len(scales) :] /= scales
    return with_weight(layer, name, weight, bias)


def _scaled(norm: RmsNorm, scales: Tensor, stored: torch.dtype) -> tuple[RmsNorm, Tensor]:
    """The norm divided and rounded as it will be stored, and the scales of weights that make just that good."""
    divided = (norm.weight / scales).to(stored).float()
    exact = torch.where(divided == 0, torch.ones_like(divided), norm.weight / divided)
    return replace(norm, weight=divided), exact
