"""From a model and a text to quantised projections: each layer on what the quantised layers before it give."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from services.worker.models.layer_parts import PROJECTIONS, projection, with_weight
from services.worker.models.layers import DecoderLayer
from services.worker.quantize.awq import scale_layer
from services.worker.quantize.calibration import Heads, LayerPass, run_layer
from services.worker.quantize.clipping import round_clipped
from services.worker.quantize.gptq import quantise_gptq
from services.worker.quantize.grids import Grid, Int4Grid, ScaledGrid, round_plainly
from services.worker.quantize.statistics import InputStatistics, seen
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import Quantization
from shared.repository.config import ModelConfig
from shared.repository.errors import ModelError

Method = Literal["awq", "gptq", "w8a16", "fp8"]
METHODS: tuple[Method, ...] = ("awq", "gptq", "w8a16", "fp8")

LoadLayer = Callable[[int], DecoderLayer]  # in float32


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is quantised. group_size: of awq and gptq. calibrated: False rounds plainly, to compare with."""

    method: Method
    group_size: int = 128
    desc_act: bool = False
    calibrated: bool = True

    @property
    def grid(self) -> Grid:
        if self.method in ("awq", "gptq"):
            return Int4Grid(self.group_size)
        return ScaledGrid(torch.int8 if self.method == "w8a16" else torch.float8_e4m3fn)

    @property
    def quantization(self) -> Quantization:
        """What the result's config.json says."""
        if self.method == "awq":
            return Quantization(layout="awq", group_size=self.group_size)
        if self.method == "gptq":
            return Quantization(layout="gptq", group_size=self.group_size, desc_act=self.desc_act, zeros_less_one=True)
        return Quantization(layout="int8-packed" if self.method == "w8a16" else "fp8")


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """layer: as it computes from now on, with dequantised weights. matrices: by projection."""

    layer: DecoderLayer
    matrices: dict[str, QuantisedMatrix]


def quantise_layers(
    load_layer: LoadLayer, config: ModelConfig, residuals: list[Tensor], recipe: Recipe, stored: torch.dtype
) -> Iterator[tuple[int, QuantisedLayer]]:
    """One layer after the other, each loaded when the one before it has gone: nothing here holds it beyond its turn.

    residuals: float32 [tokens, hidden size] of each sequence, all as long, before the first layer. stored: the dtype in
    which norms will be written. Raises ModelError for a layer whose numbers float32 or the grid cannot hold.
    """
    windows = {config.window_of(index) for index in range(config.num_hidden_layers)}
    heads = Heads(config, windows, len(residuals[0]))
    for index in range(config.num_hidden_layers):
        try:
            done, residuals = _quantised(partial(load_layer, index), heads, residuals, recipe, stored)
        except OverflowError:
            raise ModelError(_overflow(index, recipe)) from None
        if not all(torch.isfinite(residual).all() for residual in residuals):
            raise ModelError(_overflow(index, recipe))
        yield index, done
        del done


def _overflow(index: int, recipe: Recipe) -> str:
    return f"model.layers.{index} cannot be {recipe.method}: its numbers overflow on the calibration text"


@torch.inference_mode()  # not of the generator: there it would keep what was yielded while the next one is made
def _quantised(
    load: Callable[[], DecoderLayer], heads: Heads, residuals: list[Tensor], recipe: Recipe, stored: torch.dtype
) -> tuple[QuantisedLayer, list[Tensor]]:
    """The layer, and the residuals after it."""
    if recipe.calibrated and recipe.method != "awq":
        return _compensated(load(), LayerPass(heads, residuals), recipe)
    if recipe.calibrated:
        done = _scaled(load(), heads, residuals, recipe, stored)
    else:
        done = _rounded(load(), recipe)
    return done, run_layer(heads, done.layer, residuals)


def _compensated(layer: DecoderLayer, layer_pass: LayerPass, recipe: Recipe) -> tuple[QuantisedLayer, list[Tensor]]:
    """GPTQ: each projection for the inputs that the quantised ones before it give. Also the residuals afterwards."""
    matrices: dict[str, QuantisedMatrix] = {}
    for name in PROJECTIONS:
        products = seen(layer_pass.inputs(name, layer)).trusted_products
        matrices[name] = quantise_gptq(projection(layer, name).weight, products, recipe.grid, recipe.desc_act)
        layer = with_weight(layer, name, matrices[name].dequantise())
    return QuantisedLayer(layer, matrices), layer_pass.outputs(layer)


def _see_all(layer: DecoderLayer, heads: Heads, residuals: Sequence[Tensor]) -> dict[str, InputStatistics]:
    """By projection, of the layer as it is."""
    layer_pass = LayerPass(heads, residuals)
    return {name: seen(layer_pass.inputs(name, layer)) for name in PROJECTIONS}


def _scaled(
    layer: DecoderLayer,
    heads: Heads,
    residuals: Sequence[Tensor],
    recipe: Recipe,
    stored: torch.dtype,
) -> QuantisedLayer:
    """AWQ: scaled, then clipped for the inputs that the scales leave."""
    statistics = _see_all(layer, heads, residuals)
    num_heads, num_kv_heads, head_dim = (
        layer.attention.num_heads,
        layer.attention.num_kv_heads,
        layer.attention.head_dim,
    )
    repeats = (num_heads // num_kv_heads, head_dim)
    layer, scales = scale_layer(layer, statistics, recipe.grid, repeats, stored)
    num_whole = {"query_key_value": (num_heads + num_kv_heads) * head_dim}
    matrices: dict[str, QuantisedMatrix] = {}
    for name in PROJECTIONS:
        products = statistics[name].products / scales[name] / scales[name].unsqueeze(1)
        weights = projection(layer, name).weight
        matrices[name] = round_clipped(weights, products, recipe.grid, num_whole.get(name, 0))
    return _with_matrices(layer, matrices)


def _rounded(layer: DecoderLayer, recipe: Recipe) -> QuantisedLayer:
    grid = recipe.grid
    return _with_matrices(layer, {name: round_plainly(projection(layer, name).weight, grid) for name in PROJECTIONS})


def _with_matrices(layer: DecoderLayer, matrices: dict[str, QuantisedMatrix]) -> QuantisedLayer:
    for name, matrix in matrices.items():
        layer = with_weight(layer, name, matrix.dequantise())
    return QuantisedLayer(layer, matrices)
