"""What `tokenbus model quantize` does, from a stored model to a Hugging Face folder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.worker.models.decoder import EMBEDDING_NAME, HEAD_NAME
from services.worker.models.layer_parts import PROJECTIONS, projection
from services.worker.models.layers import Linear
from services.worker.quantize.calibration import embedded, split_text
from services.worker.quantize.on_demand import WeightsOnDemand
from services.worker.quantize.quantizer import QuantisedLayer, Recipe, quantise_layers
from shared.quantization.codec import store_matrix
from shared.quantization.cut import take_outputs
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import GROUP_SIZES
from shared.quantization.stored import stored_parts
from shared.repository.config import ModelConfig
from shared.repository.errors import ModelError
from shared.repository.export import DTYPES, check_is_new, write_folder
from shared.repository.progress import Progress, no_progress
from shared.repository.quantization_json import to_quantization_config
from shared.repository.stored_model import StoredModel

MAX_SHARD_BYTES = 256 << 20  # a file is in memory until it is written


def quantise_model(
    model: StoredModel,
    recipe: Recipe,
    calibration: str,
    folder: Path,
    progress: Progress = no_progress,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write the model with quantised projections to a new folder; returns it.

    calibration: a text of the kind that the model will read and write. Of the weights one layer's are in memory in
    float32 at a time, of the quantised ones a file's, max_shard_bytes. Raises ModelError for a shape that cannot be
    quantised so, a text that says too little, or a folder that exists.
    """
    config = model.config
    check_shapes(config, recipe)
    check_is_new(folder)
    tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    sequences = split_text(tokenizer, calibration, config.max_position_embeddings)
    model.verify_weights(progress)
    tensors = _tensors(WeightsOnDemand(model), model, sequences, recipe, progress)
    changes = {"quantization_config": to_quantization_config(recipe.quantization)}
    return write_folder(model, folder, tensors, changes, max_shard_bytes)


def check_shapes(config: ModelConfig, recipe: Recipe) -> None:
    """Raises ModelError for a projection that cannot be in the recipe's layout, with the group sizes that would do."""
    problem = _problem(config, recipe)
    if problem:
        others = [size for size in GROUP_SIZES if not _problem(config, replace(recipe, group_size=size))]
        hint = f"; try --group-size {' or '.join(map(str, others))}" if others else ""
        raise ModelError(problem + hint)


def _problem(config: ModelConfig, recipe: Recipe) -> str:
    """The first projection that cannot be, and why; empty if there is none."""
    for name, shape in config.parameter_shapes().items():
        if name.endswith("_proj.weight"):
            try:
                stored_parts(recipe.quantization, *shape)
            except ValueError as error:
                return f"{name} cannot be {recipe.method}: {error}"
    return ""


def _tensors(
    weights: WeightsOnDemand,
    model: StoredModel,
    sequences: Sequence[Sequence[int]],
    recipe: Recipe,
    progress: Progress,
) -> Iterator[tuple[str, Tensor]]:
    """Everything that the folder's safetensors hold, by name."""
    config = model.config
    stored = DTYPES[config.torch_dtype]
    embedding = weights.tensor(EMBEDDING_NAME)
    layers = quantise_layers(weights.layer, config, embedded(embedding, sequences), recipe, stored)
    yield EMBEDDING_NAME, embedding.to(stored)
    del embedding
    num_weights = sum(rows[0] * rows[1] for name, rows in config.parameter_shapes().items() if "_proj.w" in name)
    for index, done in layers:
        yield from _layer_tensors(f"model.layers.{index}.", done, config, recipe, stored)
        del done  # before the next layer is loaded: enumerate, too, would keep it
        progress(f"quantise {model.name}", num_weights * (index + 1) // config.num_hidden_layers, num_weights)
    for name in ("model.norm.weight", HEAD_NAME):
        if name in weights:
            yield name, weights.tensor(name).to(stored)


def _layer_tensors(
    prefix: str, done: QuantisedLayer, config: ModelConfig, recipe: Recipe, stored: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    layer = done.layer
    norms = {
        "input_layernorm": layer.attention_norm,
        "post_attention_layernorm": layer.feed_forward_norm,
        "self_attn.q_norm": layer.attention.query_norm,
        "self_attn.k_norm": layer.attention.key_norm,
    }
    for name, norm in norms.items():
        if norm is not None:
            yield f"{prefix}{name}.weight", norm.weight.to(stored)
    for name in PROJECTIONS:
        yield from _projection_tensors(projection(layer, name), done.matrices[name], config, recipe, stored)


def _projection_tensors(
    linear: Linear, matrix: QuantisedMatrix, config: ModelConfig, recipe: Recipe, stored: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Of the parameters that a fused projection stacks."""
    shapes, first = config.parameter_shapes(), 0
    for name in linear.names:
        stem, last = name.removesuffix("weight"), first + shapes[name][0]
        for end, part in store_matrix(recipe.quantization, take_outputs(matrix, slice(first, last))).items():
            yield stem + end, part.contiguous()
        if linear.bias is not None:
            yield stem + "bias", linear.bias[first:last].to(stored)
        first = last
