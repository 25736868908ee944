"""Groups of 128, the default, which SmolLM2's 576 inputs cannot have: quantise, add, load, generate."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from services.worker.engine.cpu import CpuEngine
from services.worker.models.layer_parts import PROJECTIONS, projection
from services.worker.models.parameters import Parameters
from services.worker.models.quantised import (
    PackedLinear,
    QuantisedProducts,
    iter_weights_but_matrices,
    pack_projections,
)
from services.worker.models.registry import builder_of
from services.worker.quantize import quantizer
from services.worker.quantize.command import quantise_model
from services.worker.quantize.quantizer import Recipe
from shared.quantization.matrix import GroupedMatrix, QuantisedMatrix
from shared.repository.inspect import inspect_path
from shared.repository.quantised_weights import iter_quantised_weights
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LogitsRecorder
from tests.kernels.emulator.module import load_emulated
from tests.quantize.test_quantize_model import stored_with_outliers
from tests.tiny_models import CORPUS, make_tiny_model

TEXT = "\n".join(CORPUS * 8)
RECIPES = [Recipe("awq"), Recipe("gptq"), Recipe("gptq", desc_act=True)]
IDS = ["awq", "gptq", "gptq in order of importance"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """Two groups of inputs to a head's projections, three to down, and some inputs much larger than the others."""
    folder = tmp_path_factory.mktemp("groups")
    return stored_with_outliers(folder, hidden_size=256, intermediate_size=384, initializer_range=0.08)


def quantised(model: StoredModel, folder: Path, recipe: Recipe) -> StoredModel:
    quantise_model(model, recipe, TEXT, folder / "quantised")
    return ModelRepository(folder / "models").add(inspect_path(folder / "quantised"), "quantised")


def prompts(model: StoredModel) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    return [tokenizer.encode(text).ids for text in CORPUS]


def outputs(model: StoredModel) -> tuple[list[list[int]], Tensor]:
    """What is generated, and the logits after each token of the prompts, float32 [tokens, vocabulary]."""
    recorder = LogitsRecorder(CpuEngine.load(model, Options(kv_cache_memory_bytes=8 << 20)))
    beginnings = [ids[:length] for ids in prompts(model) for length in range(1, len(ids) + 1)]
    generate(recorder, beginnings, greedy(1))
    logits = torch.cat(recorder.logits)
    return generate(recorder, prompts(model), greedy(12)), logits


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_what_is_generated_is_what_the_quantisers_own_weights_generate(
    tmp_path: Path, model: StoredModel, recipe: Recipe
) -> None:
    matrices: list[QuantisedMatrix] = []
    with pytest.MonkeyPatch.context() as patch:
        exact = quantizer.QuantisedLayer

        def remembered(layer: object, of_layer: dict[str, QuantisedMatrix]) -> object:
            matrices.extend(of_layer[name] for name in PROJECTIONS)
            return exact(layer, of_layer)  # type: ignore[arg-type]

        patch.setattr(quantizer, "QuantisedLayer", remembered)
        found = quantised(model, tmp_path, recipe)
    assert found.config.quantization == recipe.quantization
    assert found.config.quantization is not None
    assert found.config.quantization.group_size == 128
    loaded = dict(iter_quantised_weights(found, found.config.quantization))
    fused = {"query_key_value": ("q", "k", "v"), "output": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
    for index, matrix in enumerate(matrices):
        layer, place = divmod(index, len(PROJECTIONS))
        prefix = f"model.layers.{layer}.{'self_attn' if place < 2 else 'mlp'}."
        parts = [loaded[f"{prefix}{part}_proj.weight"] for part in fused[PROJECTIONS[place]]]
        assert all(isinstance(part, GroupedMatrix) and part.group_size == 128 for part in parts)
        dequantised = [part.dequantise() for part in parts if isinstance(part, GroupedMatrix)]
        assert torch.equal(torch.cat(dequantised), matrix.dequantise())
    plain = {name: tensor.clone() for name, tensor in iter_weights(found)}
    source = make_tiny_model(
        tmp_path / "plain", "LlamaForCausalLM", hidden_size=256, intermediate_size=384, num_hidden_layers=2
    )
    save_file(plain, source / "model.safetensors", metadata={"format": "pt"})
    dense = ModelRepository(tmp_path / "models").add(inspect_path(source), "dense")
    tokens, logits = outputs(found)
    expected_tokens, expected_logits = outputs(dense)
    assert tokens == expected_tokens
    assert torch.equal(logits, expected_logits)


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_calibration_is_better_than_plain_rounding(tmp_path: Path, model: StoredModel, recipe: Recipe) -> None:
    _, exact = outputs(model)
    _, calibrated = outputs(quantised(model, tmp_path / "calibrated", recipe))
    plain = Recipe(recipe.method, recipe.group_size, recipe.desc_act, calibrated=False)
    _, rounded = outputs(quantised(model, tmp_path / "rounded", plain))
    assert (calibrated - exact).norm() < 0.9 * (rounded - exact).norm()


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_devices_multiply_with_the_packed_weights(tmp_path: Path, model: StoredModel, recipe: Recipe) -> None:
    """The kernels in the emulator, with what the quantiser wrote."""
    found = quantised(model, tmp_path, recipe)
    kept: dict[str, QuantisedMatrix] = {}
    weights = iter_weights_but_matrices(found, recipe.quantization, kept)
    parameters = Parameters(weights, found.config.parameter_shapes(), torch.bfloat16)
    decoder = pack_projections(builder_of(found.config.architecture)(found.config, parameters), kept, torch.bfloat16)
    products = QuantisedProducts(load_emulated(), decoder, torch.bfloat16, 8, 4)
    exact = {name: tensor.double() for name, tensor in iter_weights(found)}
    for name in PROJECTIONS:
        linear = projection(decoder.layers[1], name)
        assert isinstance(linear, PackedLinear)
        assert linear.packed is not None
        weight = torch.cat([exact[part] for part in linear.names])
        x = torch.randn((5, weight.shape[1]), generator=torch.Generator().manual_seed(1)).bfloat16()
        out = torch.full((5, len(weight)), float("nan"), dtype=torch.bfloat16)
        products(out, x, linear, linear.packed)
        expected = x.double() @ weight.t()
        size = x.double().abs() @ weight.abs().t()
        assert ((out.double() - expected).abs() <= expected.abs() * 2.0**-8 + size * 1e-6).all()
