"""Quantising layer by layer: the results are those with all weights in memory, of which one layer's are there."""

import gc
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from services.worker.models.decoder import Decoder
from services.worker.models.layer_parts import PROJECTIONS, projection
from services.worker.models.layers import DecoderLayer
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from services.worker.quantize import on_demand, quantizer
from services.worker.quantize.command import quantise_model
from services.worker.quantize.on_demand import WeightsOnDemand
from services.worker.quantize.quantizer import METHODS, Method, Recipe
from shared.quantization.scheme import Quantization
from shared.repository.huggingface import INDEX_FILE
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.repository.gguf_files import write_gguf
from tests.repository.quantised_folders import make_quantised_model
from tests.stored_models import store_tiny_model
from tests.tiny_models import ARCHITECTURES, CORPUS, make_tiny_model

TEXT = "\n".join(CORPUS * 3)
NUM_LAYERS = 3
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": NUM_LAYERS}


def whole(model: StoredModel) -> Decoder:
    """With all weights in memory."""
    parameters = Parameters(iter_weights(model), model.config.parameter_shapes(), torch.float32)
    return builder_of(model.config.architecture)(model.config, parameters)


def tensors_of(layer: DecoderLayer) -> Iterator[Tensor | None]:
    for name in PROJECTIONS:
        yield from (projection(layer, name).weight, projection(layer, name).bias)
    attention = layer.attention
    for norm in (layer.attention_norm, layer.feed_forward_norm, attention.query_norm, attention.key_norm):
        yield None if norm is None else norm.weight


def assert_same_layers(model: StoredModel) -> None:
    weights, decoder = WeightsOnDemand(model), whole(model)
    for index, expected in enumerate(decoder.layers):
        found = weights.layer(index)
        assert found.attention.sliding_window == expected.attention.sliding_window
        for one, other in zip(tensors_of(found), tensors_of(expected), strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or (one.dtype == other.dtype and torch.equal(one, other))
    assert torch.equal(weights.tensor("model.embed_tokens.weight").float(), decoder.embedding)
    assert ("lm_head.weight" in weights) == (not decoder.is_tied)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_are_those_of_the_whole_model(tmp_path: Path, architecture: str) -> None:
    assert_same_layers(store_tiny_model(tmp_path, architecture, **SIZES))


def test_layers_of_a_gguf_file(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "source", "LlamaForCausalLM", **SIZES)
    write_gguf(folder, tmp_path / "tiny.gguf", "llama")
    assert_same_layers(ModelRepository(tmp_path / "models").add(inspect_path(tmp_path / "tiny.gguf"), "tiny"))


def test_layers_of_a_quantised_model(tmp_path: Path) -> None:
    make_quantised_model(tmp_path / "source", Quantization(layout="gptq", group_size=32, desc_act=True))
    assert_same_layers(ModelRepository(tmp_path / "models").add(inspect_path(tmp_path / "source"), "tiny"))


@pytest.mark.parametrize("method", METHODS)
def test_results_are_those_with_all_weights_in_memory(tmp_path: Path, method: Method) -> None:
    model = store_tiny_model(tmp_path, "Qwen2ForCausalLM", **SIZES)
    recipe = Recipe(method, 32, desc_act=method == "gptq")
    found = quantise_model(model, recipe, TEXT, tmp_path / "found", max_shard_bytes=20_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightsOnDemand, "layer", lambda self, index: whole(model).layers[index])
        expected = quantise_model(model, recipe, TEXT, tmp_path / "expected")
    assert (found / INDEX_FILE).exists()
    parts = [load_file(file) for file in sorted(found.glob("*.safetensors"))]
    assert len(parts) > NUM_LAYERS
    tensors = load_file(expected / "model.safetensors")
    assert sorted(name for part in parts for name in part) == sorted(tensors)
    assert all(torch.equal(part[name], tensors[name]) for part in parts for name in part)
    once, again = (ModelRepository(tmp_path / "m").add(inspect_path(path), path.name) for path in (found, expected))
    for (name, one), (other_name, other) in zip(iter_weights(once), iter_weights(again), strict=True):
        assert name == other_name
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "method", ["gptq", *(pytest.param(method, marks=pytest.mark.full) for method in METHODS if method != "gptq")]
)
def test_weights_of_one_layer_are_in_memory_at_a_time(tmp_path: Path, method: Method) -> None:
    """In float32, counted while layers are loaded, seen and computed; and each is read in its turn, once."""
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", **SIZES)
    shapes = {tuple(projection(layer, name).weight.shape) for layer in whole(model).layers for name in PROJECTIONS}
    shapes |= {shape for name, shape in model.config.parameter_shapes().items() if "_proj.w" in name}
    a_layer = sum(projection(whole(model).layers[0], name).weight.numel() for name in PROJECTIONS)
    counts: dict[str, list[int]] = {"before": [], "loaded": [], "seen": [], "computed": []}
    read: list[str] = []
    exact = {"layer": WeightsOnDemand.layer, "seen": quantizer.seen, "run_layer": quantizer.run_layer}

    def count(when: str) -> None:
        gc.collect()
        alive = {
            each.untyped_storage().data_ptr(): each.numel()
            for each in gc.get_objects()
            if type(each) is Tensor and each.dtype == torch.float32 and tuple(each.shape) in shapes
            if not each.is_meta
        }
        counts[when].append(sum(alive.values()))

    def layer(self: WeightsOnDemand, index: int) -> DecoderLayer:
        count("before")
        found: DecoderLayer = exact["layer"](self, index)
        count("loaded")
        return found

    def seen(*args: Any) -> Any:
        count("seen")
        return exact["seen"](*args)

    def run_layer(*args: Any) -> Any:
        count("computed")
        return exact["run_layer"](*args)

    def reading(model: StoredModel, *, only: Collection[str], verify: bool) -> Iterator[tuple[str, Tensor]]:
        read.extend(sorted(only))
        return iter_weights(model, only=only, verify=verify)

    gc.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightsOnDemand, "layer", layer)
        patch.setattr(quantizer, "seen", seen)
        patch.setattr(quantizer, "run_layer", run_layer)
        patch.setattr(on_demand, "iter_weights", reading)
        quantise_model(model, Recipe(method, 32), TEXT, tmp_path / "out", max_shard_bytes=1000)
    assert counts["before"] == [0] * NUM_LAYERS
    assert counts["loaded"] == [a_layer] * NUM_LAYERS
    assert counts["seen"] == [a_layer] * NUM_LAYERS * len(PROJECTIONS)
    assert counts["computed"] == ([a_layer] * NUM_LAYERS if method == "awq" else [])
    assert sorted(read) == sorted(model.config.parameter_shapes())
    turns = [name.split(".")[2] for name in read if ".layers." in name]
    assert turns == sorted(turns)
