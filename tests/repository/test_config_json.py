"""config.json becomes a ModelConfig, or is refused with its name and the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from shared.repository.config import ARCHITECTURES as KNOWN
from shared.repository.config import Llama3RopeScaling, to_huggingface
from shared.repository.config_json import parse_config
from shared.repository.errors import BadModelFile, UnsupportedModel
from tests.tiny_models import ARCHITECTURES, make_tiny_model

FILE = Path("model/config.json")

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters_are_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    folder = make_tiny_model(tmp_path / "model", architecture)
    config = parse_config(json.loads((folder / "config.json").read_text()), folder / "config.json")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert config.parameter_shapes() == {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert config.architecture == architecture
    assert config.torch_dtype == "float32"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_written_config_reads_as_the_same_model(tmp_path: Path, architecture: str) -> None:
    folder = make_tiny_model(tmp_path / "model", architecture)
    config = parse_config(json.loads((folder / "config.json").read_text()), folder / "config.json")
    assert parse_config(to_huggingface(config, (2,), 0), FILE) == config


def test_both_spellings_of_rope_and_dtype() -> None:
    old = {**SMALL, "rope_theta": 500000.0, "rope_scaling": LLAMA3, "torch_dtype": "float16"}
    new = {**SMALL, "rope_parameters": {"rope_theta": 500000.0, **LLAMA3}, "dtype": "float16"}
    config = parse_config(old, FILE)
    assert config == parse_config(new, FILE)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )


def test_sliding_windows() -> None:
    mistral = {**SMALL, "architectures": ["MistralForCausalLM"]}
    assert parse_config(mistral, FILE).sliding_window == 4096
    assert parse_config({**mistral, "sliding_window": None}, FILE).sliding_window is None
    qwen = {**SMALL, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 16, "max_window_layers": 3}
    assert parse_config(qwen, FILE).sliding_window is None
    config = parse_config({**qwen, "use_sliding_window": True}, FILE)
    assert [config.window_of(layer) for layer in range(4)] == [None, None, None, 16]


def test_biases_and_norms_by_family() -> None:
    def parsed(architecture: str, **more: Any) -> Any:
        return parse_config({**SMALL, "architectures": [architecture], **more}, FILE)

    assert not parsed("LlamaForCausalLM").attention_bias
    assert parsed("LlamaForCausalLM", attention_bias=True).attention_output_bias
    assert parsed("LlamaForCausalLM", mlp_bias=True).mlp_bias
    assert parsed("Qwen2ForCausalLM").attention_bias
    assert not parsed("Qwen2ForCausalLM").attention_output_bias
    assert parsed("Qwen3ForCausalLM").qk_norm
    assert parsed("Qwen3ForCausalLM").head_dim == 128


@pytest.mark.parametrize("architectures", [["GPT2LMHeadModel"], ["SmolLM3ForCausalLM"], ["llama"]])
def test_unknown_architecture_is_refused_with_the_known_ones(architectures: list[str]) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        parse_config({**SMALL, "architectures": architectures}, FILE)
    assert architectures[0] in str(refused.value)
    assert all(name in str(refused.value) for name in KNOWN)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}, "auto_map"),
        ({"architectures": None}, "architectures"),
        ({"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"alibi": True}, "ALiBi is not supported"),
        ({"use_alibi": True}, "ALiBi is not supported"),
        ({"position_embedding_type": "alibi"}, "ALiBi is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {**LLAMA3, "factor": 0}}, "factor"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 65}, "not a multiple"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "odd"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types"),
    ],
)
def test_bad_values_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadModelFile) as refused:
        parse_config({**SMALL, **changes}, FILE)
    assert str(FILE) in str(refused.value)
    assert reason in str(refused.value)
