"""A quantised Hugging Face folder: stored, read matrix by matrix, computed; and refused when it is not sound."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import Quantization
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.export import export_model
from shared.repository.inspect import inspect_path
from shared.repository.quantised_weights import iter_quantised_weights
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.repository.quantised_folders import make_quantised_model

QUANTIZATIONS = [
    Quantization(layout="awq", group_size=32),
    Quantization(layout="awq", group_size=128),
    Quantization(layout="gptq", group_size=64, zeros_less_one=True),
    Quantization(layout="gptq", group_size=32, desc_act=True),
    Quantization(layout="int8"),
    Quantization(layout="int8-packed"),
    Quantization(layout="fp8"),
]
GPTQ = QUANTIZATIONS[2]


def stored(folder: Path, source: Path) -> StoredModel:
    return ModelRepository(folder / "models").add(inspect_path(source), "tiny")


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_parameter_comes_once(tmp_path: Path, quantization: Quantization, shards: int) -> None:
    matrices = make_quantised_model(tmp_path / "source", quantization, shards=shards)
    model = stored(tmp_path, tmp_path / "source")
    assert model.config.quantization == quantization
    plain = dict(iter_weights(model))
    found = list(iter_quantised_weights(model, quantization))
    shapes = model.config.parameter_shapes()
    assert [name for name, _ in found] == list(shapes) == list(plain)
    assert {name for name, value in found if not isinstance(value, torch.Tensor)} == matrices.keys()
    for name, value in found:
        expected = matrices[name].dequantise() if name in matrices else value
        assert tuple(plain[name].shape) == shapes[name]
        assert torch.equal(dequantised(value), expected)
        assert torch.equal(plain[name], expected)


def dequantised(value: torch.Tensor | QuantisedMatrix) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else value.dequantise()


def test_projections_that_are_plain_floats_stay_so(tmp_path: Path) -> None:
    """Their names stand in lists of exceptions, which nobody needs to read."""
    matrices = make_quantised_model(tmp_path / "source", GPTQ)
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    for end in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[name.removesuffix("weight") + end]
    tensors[name] = torch.rand(matrices[name].codes.shape)
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    found = dict(iter_quantised_weights(stored(tmp_path, tmp_path / "source"), GPTQ))
    assert torch.equal(found[name], tensors[name])


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"])
def test_an_exported_model_is_the_dequantised_one(tmp_path: Path, architecture: str) -> None:
    make_quantised_model(tmp_path / "source", GPTQ, architecture)
    model = stored(tmp_path, tmp_path / "source")
    export_model(model, tmp_path / "exported", "float32")
    again = ModelRepository(tmp_path / "models").add(inspect_path(tmp_path / "exported"), "again")
    assert again.config.quantization is None
    exact = dict(iter_weights(model))
    assert all(torch.equal(tensor, exact[name]) for name, tensor in iter_weights(again))


def spoil(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Put another tensor in the place of one, or none."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


STEM = "model.layers.0.mlp.up_proj."


@pytest.mark.parametrize(
    ("end", "tensor", "reason"),
    [
        ("scales", None, "tensor model.layers.0.mlp.up_proj.scales is missing"),
        ("scales", torch.ones(3, 128), "has shape [3, 128], the configuration asks for [2, 128]"),
        ("qweight", torch.ones((16, 128)), "unexpected tensor model.layers.0.mlp.up_proj."),
        ("qzeros", torch.ones((2, 16)), "dtype F32; supported: I32"),
        ("more", torch.ones(1), "unexpected tensor model.layers.0.mlp.up_proj.more"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(
    tmp_path: Path, end: str, tensor: torch.Tensor | None, reason: str
) -> None:
    make_quantised_model(tmp_path / "source", GPTQ)
    spoil(tmp_path / "source", STEM + end, tensor)
    with pytest.raises(BadModelFile) as refused:
        inspect_path(tmp_path / "source")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("end", "tensor", "reason"),
    [
        ("scales", torch.full((2, 128), float("inf"), dtype=torch.float16), "a scale is not a finite number"),
        ("g_idx", torch.zeros(128, dtype=torch.int32), "g_idx has groups of 0 and of 128"),
        ("bias", torch.ones(128), "up_proj.bias, which is not zero"),
    ],
)
def test_values_that_cannot_be_are_refused_when_they_are_read(
    tmp_path: Path, end: str, tensor: torch.Tensor, reason: str
) -> None:
    make_quantised_model(tmp_path / "source", GPTQ)
    spoil(tmp_path / "source", STEM + end, tensor)
    with pytest.raises(BadModelFile, match=reason):
        list(iter_weights(stored(tmp_path, tmp_path / "source")))


def test_a_bias_of_zeros_is_nothing(tmp_path: Path) -> None:
    make_quantised_model(tmp_path / "source", GPTQ)
    spoil(tmp_path / "source", STEM + "bias", torch.zeros(128))
    model = stored(tmp_path, tmp_path / "source")
    assert [name for name, _ in iter_weights(model)] == list(model.config.parameter_shapes())


def test_a_group_that_does_not_divide_the_inputs_is_refused(tmp_path: Path) -> None:
    make_quantised_model(tmp_path / "source", GPTQ)
    file = tmp_path / "source" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(UnsupportedModel, match="its 96 inputs are no multiple of the group_size 64"):
        inspect_path(tmp_path / "source")


def test_integers_in_a_plain_model_are_refused(tmp_path: Path) -> None:
    make_quantised_model(tmp_path / "source", Quantization(layout="int8"))
    file = tmp_path / "source" / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="dtype I8; supported: F32, F16, BF16"):
        inspect_path(tmp_path / "source")
