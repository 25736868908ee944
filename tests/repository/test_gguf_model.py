"""A GGUF file becomes the model that it was made from."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch

from shared.repository.config import Llama3RopeScaling
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.gguf_config import llama3_divisors, rope_factors_to_scaling, undo_permutation
from shared.repository.gguf_file import GgufFile, read_gguf
from shared.repository.gguf_source import inspect_gguf
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.repository.gguf_files import permute, write_gguf
from tests.tiny_models import make_tiny_model

MADE_FROM = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def stored(tmp_path: Path, file: Path) -> StoredModel:
    return ModelRepository(tmp_path / "models").add(inspect_gguf(file), "tiny")


@pytest.mark.parametrize("architecture", MADE_FROM)
def test_float32_weights_come_back_exactly(tmp_path: Path, architecture: str) -> None:
    folder = make_tiny_model(tmp_path / "model", MADE_FROM[architecture])
    write_gguf(folder, tmp_path / "tiny.gguf", architecture)
    model = stored(tmp_path, tmp_path / "tiny.gguf")
    original = load_torch(folder / "model.safetensors")
    weights = dict(iter_weights(model))
    assert weights.keys() == original.keys() == model.config.parameter_shapes().keys()
    assert all(torch.equal(weights[name], original[name]) for name in original)
    assert model.config.torch_dtype == "float32"


def test_rows_of_qwen_are_not_permuted_and_those_of_llama_are(tmp_path: Path) -> None:
    rows = np.arange(2 * 8 * 3, dtype=np.float32).reshape(16, 3)
    assert not np.array_equal(permute(rows, 2), rows)
    assert np.array_equal(undo_permutation(permute(rows, 2), 2), rows)
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "tiny.gguf", "llama")
    stored_rows = read_rows(tmp_path / "tiny.gguf", "blk.1.attn_q.weight")
    original = load_file(folder / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    assert not np.array_equal(stored_rows, original)


def read_rows(file: Path, name: str) -> np.ndarray:
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    return np.asarray(tensors[name].data)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_every_encoding_reads_as_the_gguf_package_reads_it(tmp_path: Path, architecture: str, kind: str) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256} if kind.endswith("K") else {}
    folder = make_tiny_model(tmp_path / "model", MADE_FROM[architecture], **sizes)
    quantised = write_gguf(folder, tmp_path / "tiny.gguf", architecture, GGMLQuantizationType[kind])
    model = stored(tmp_path, tmp_path / "tiny.gguf")
    weights = dict(iter_weights(model))
    for name, data in quantised.items():
        expected = torch.from_numpy(np.asarray(gguf.dequantize(data, GGMLQuantizationType[kind])))
        assert torch.equal(weights[name].float(), expected)
    native = {"F16": "float16", "BF16": "bfloat16"}
    assert model.config.torch_dtype == native.get(kind, "bfloat16")
    assert weights["model.embed_tokens.weight"].dtype == getattr(torch, native.get(kind, "float32"))


def test_mistral_keeps_its_window(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "MistralForCausalLM", sliding_window=16)
    write_gguf(folder, tmp_path / "tiny.gguf", "llama")
    config = stored(tmp_path, tmp_path / "tiny.gguf").config
    assert (config.architecture, config.sliding_window) == ("MistralForCausalLM", 16)


def test_llama3_scaling_is_found_in_its_tensor() -> None:
    scaling = Llama3RopeScaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    factors = llama3_divisors(64, 500000.0, scaling).astype(np.float32)
    assert factors.min() == 1.0
    assert factors.max() == 32.0
    file = GgufFile(Path("x.gguf"), {}, {})
    assert rope_factors_to_scaling(file, 64, 500000.0, factors) == scaling
    with pytest.raises(UnsupportedModel, match="RoPE"):
        rope_factors_to_scaling(file, 64, 500000.0, factors * 1.5)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.dimension_count": 8}, "RoPE over 8"),
    ],
)
def test_extensions_are_refused(tmp_path: Path, extra: dict[str, object], reason: str) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "tiny.gguf", "llama", extra=extra)
    with pytest.raises(UnsupportedModel, match=reason):
        inspect_gguf(tmp_path / "tiny.gguf")


def test_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "tiny.gguf", "mamba")
    with pytest.raises(UnsupportedModel, match="mamba; known architectures: llama, qwen2, qwen3"):
        inspect_gguf(tmp_path / "tiny.gguf")


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=2)
    write_gguf(folder, tmp_path / "tiny.gguf", "llama", extra={"llama.unused": 1})
    data = (tmp_path / "tiny.gguf").read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight")
    (tmp_path / "tiny.gguf").write_bytes(data)
    with pytest.raises(BadModelFile, match=r"unexpected tensor model\.layers\.9"):
        inspect_gguf(tmp_path / "tiny.gguf")


def test_sampling_defaults_come_from_the_metadata(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "Qwen3ForCausalLM")
    extra = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    write_gguf(folder, tmp_path / "tiny.gguf", "qwen3", extra=extra)
    source = inspect_gguf(tmp_path / "tiny.gguf")
    assert source.generation_defaults == {"temperature": 0.6, "top_k": 20}
    assert source.eos_token_ids == (2,)
    assert source.bos_token == "<|endoftext|>"
    assert not source.add_bos_token


def test_header_is_the_one_that_the_gguf_package_reads(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "tiny.gguf", "llama", GGMLQuantizationType.Q8_0)
    ours, theirs = read_gguf(tmp_path / "tiny.gguf"), gguf.GGUFReader(tmp_path / "tiny.gguf")
    assert {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    } == ours.metadata
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert (found.offset, found.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
