"""From a model and a text to quantised projections: each layer on what the quantised layers before it give."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from services.worker.models.decoder import Decoder
from services.worker.models.layers import DecoderLayer
from services.worker.quantize.awq import scale_layer
from services.worker.quantize.calibration import LayerRunner
from services.worker.quantize.gptq import quantise_gptq
from services.worker.quantize.grids import Grid, Int4Grid, ScaledGrid, round_plainly
from services.worker.quantize.layer_parts import PROJECTIONS, projection, with_weight
from services.worker.quantize.statistics import InputStatistics
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import Quantization
from shared.repository.config import ModelConfig

Method = Literal["awq", "gptq", "w8a16", "fp8"]
METHODS: tuple[Method, ...] = ("awq", "gptq", "w8a16", "fp8")


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
        return Quantization(layout="int8" if self.method == "w8a16" else "fp8")


@dataclass(frozen=True, slots=True)
class QuantisedLayer:
    """layer: as it computes from now on, with dequantised weights. matrices: by projection."""

    layer: DecoderLayer
    matrices: dict[str, QuantisedMatrix]


@torch.inference_mode()
def quantise_layers(
    decoder: Decoder, config: ModelConfig, sequences: Sequence[Sequence[int]], recipe: Recipe, stored: torch.dtype
) -> Iterator[QuantisedLayer]:
    """One layer after the other, taken from the decoder, whose weights are float32.

    sequences: token ids, all as many. stored: the dtype in which norms will be written. Raises ValueError for a group
    size that does not divide the inputs.
    """
    runner = LayerRunner(config, decoder.windows(), len(sequences[0]))
    residuals = [decoder.embedding[torch.tensor(ids)] for ids in sequences]
    while decoder.layers:
        done = _quantise_layer(decoder.layers.pop(0), config, runner, residuals, recipe, stored)
        residuals = [runner.run(done.layer, residual) for residual in residuals]
        yield done


def _quantise_layer(
    layer: DecoderLayer,
    config: ModelConfig,
    runner: LayerRunner,
    residuals: Sequence[Tensor],
    recipe: Recipe,
    stored: torch.dtype,
) -> QuantisedLayer:
    if recipe.method == "awq" and recipe.calibrated:
        sees = {name: InputStatistics(projection(layer, name).weight.shape[1]) for name in PROJECTIONS}
        runner.watch(layer, residuals, {name: statistics.add for name, statistics in sees.items()})
        heads_of_key = config.num_attention_heads // config.num_key_value_heads
        layer = scale_layer(layer, sees, recipe.grid, (heads_of_key, config.head_dim), stored)
    matrices: dict[str, QuantisedMatrix] = {}
    for name in PROJECTIONS:
        weights = projection(layer, name).weight
        if recipe.calibrated and recipe.method != "awq":
            statistics = InputStatistics(weights.shape[1])
            runner.watch(layer, residuals, {name: statistics.add})
            matrices[name] = quantise_gptq(weights, statistics.products, recipe.grid, recipe.desc_act)
        else:
            matrices[name] = round_plainly(weights, recipe.grid)
        layer = with_weight(layer, name, matrices[name].dequantise())
    return QuantisedLayer(layer, matrices)
