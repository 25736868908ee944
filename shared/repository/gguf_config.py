"""From GGUF metadata to a ModelConfig, and from GGUF tensor names to Hugging Face's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shared.repository.config import Llama3RopeScaling, ModelConfig, WeightDtype
from shared.repository.config_json import parse_config
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.gguf_file import GgufFile, GgufTensor

GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

PERMUTING_ARCHITECTURES = ("llama",)
"""GGUF architectures whose query and key rows were reordered for RoPE over neighbouring pairs."""

ROPE_FACTORS = "rope_freqs.weight"

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FIELDS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
}
_NATIVE_DTYPES: dict[str, WeightDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


def gguf_architecture(gguf: GgufFile) -> str:
    """general.architecture, a key of GGUF_ARCHITECTURES. Raises UnsupportedModel for another one."""
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        known = ", ".join(sorted(GGUF_ARCHITECTURES))
        raise UnsupportedModel(gguf.path, f"unknown architecture {str(name)[:60]}; known architectures: {known}")
    return name


def gguf_config(gguf: GgufFile) -> ModelConfig:
    """The ModelConfig that the metadata and the tensor table describe.

    Raises BadModelFile for missing or impossible values, UnsupportedModel for experts and for RoPE scaling.
    """
    architecture = gguf_architecture(gguf)
    metadata = gguf.metadata
    document: dict[str, Any] = {"architectures": [GGUF_ARCHITECTURES[architecture]]}
    for key, name in _FIELDS.items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None:
            document[name] = _uniform(gguf, f"{architecture}.{key}", value)
    if architecture == "llama" and "sliding_window" in document:
        document["architectures"] = ["MistralForCausalLM"]
    elif "sliding_window" in document:
        raise UnsupportedModel(gguf.path, f"{architecture}.attention.sliding_window is not supported")
    if architecture == "qwen3" and "head_dim" not in document:
        raise BadModelFile(gguf.path, "qwen3.attention.key_length is missing")
    document.setdefault("num_key_value_heads", document.get("num_attention_heads"))
    document["rms_norm_eps"] = _decimal(metadata.get(f"{architecture}.attention.layer_norm_rms_epsilon"))
    document["rope_theta"] = _decimal(metadata.get(f"{architecture}.rope.freq_base"))
    document["tie_word_embeddings"] = "output.weight" not in gguf.tensors
    document["attention_bias"] = architecture != "qwen2" and "blk.0.attn_q.bias" in gguf.tensors
    document["mlp_bias"] = "blk.0.ffn_down.bias" in gguf.tensors
    document["vocab_size"] = _embedding(gguf).shape[0]
    document["torch_dtype"] = _NATIVE_DTYPES.get(_embedding_neighbour(gguf).type.name, "bfloat16")
    _refuse_extensions(metadata, architecture, gguf)
    config = parse_config(document, gguf.path)
    rotated = metadata.get(f"{architecture}.rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise UnsupportedModel(gguf.path, f"RoPE over {rotated} of {config.head_dim} dimensions is not supported")
    return config


def rope_factors_to_scaling(gguf: GgufFile, head_dim: int, theta: float, factors: np.ndarray) -> Llama3RopeScaling:
    """The llama3 scaling that a rope_freqs tensor stands for.

    factors: float32 [head_dim / 2], what each frequency is divided by. Raises UnsupportedModel when they are not those
    of a known llama3 scaling.
    """
    for factor in _LLAMA3_FACTORS:
        scaling = Llama3RopeScaling(
            factor=factor,
            low_freq_factor=_LLAMA3_LOW,
            high_freq_factor=_LLAMA3_HIGH,
            original_max_position_embeddings=_LLAMA3_CONTEXT,
        )
        expected = llama3_divisors(head_dim, theta, scaling)
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-3):
            return scaling
    raise UnsupportedModel(gguf.path, f"{ROPE_FACTORS} holds no known llama3 RoPE scaling")


def llama3_divisors(head_dim: int, theta: float, scaling: Llama3RopeScaling) -> np.ndarray:
    """What each of the head_dim / 2 RoPE frequencies is divided by: float64 [head_dim / 2]."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_max_position_embeddings / wavelengths
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return np.asarray(1.0 / (kept + (1.0 - kept) / scaling.factor), dtype=np.float64)


def huggingface_name(gguf_name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one that no layer of ours has."""
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _TOP_LEVEL:
        return f"{_TOP_LEVEL[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _PER_LAYER:
        return f"model.layers.{parts[1]}.{_PER_LAYER[parts[2]]}.{kind}"
    return None


def undo_permutation(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Put query or key rows back into Hugging Face's order.

    rows: [num_heads * head_dim, ...] in GGUF order, where rows 2 i and 2 i + 1 of a head turn together. Returns the
    same shape in the order where i and i + head_dim / 2 do.
    """
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _embedding(gguf: GgufFile) -> GgufTensor:
    tensor = gguf.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise BadModelFile(gguf.path, "tensor token_embd.weight is missing")
    return tensor


def _embedding_neighbour(gguf: GgufFile) -> GgufTensor:
    """A typical matrix, whose type says what "auto" means: embeddings are often kept finer than the rest."""
    return gguf.tensors.get("blk.0.ffn_down.weight", _embedding(gguf))


def _uniform(gguf: GgufFile, key: str, value: Any) -> Any:
    """A per-layer list whose values are all equal, as that value."""
    if not isinstance(value, list):
        return value
    if not value or any(item != value[0] for item in value):
        raise UnsupportedModel(gguf.path, f"{key} differs from layer to layer")
    return value[0]


def _decimal(value: Any) -> Any:
    """A float32 as the shortest decimal number that rounds to it: 1e-05 rather than 9.99999974e-06."""
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):  # beyond float32 it is infinite, which no field allows
        return float(str(np.float32(value)))


def _refuse_extensions(metadata: Mapping[str, Any], architecture: str, gguf: GgufFile) -> None:
    if metadata.get(f"{architecture}.expert_count"):
        raise UnsupportedModel(gguf.path, "mixtures of experts are not supported")
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind != "none" or metadata.get(f"{architecture}.rope.scale_linear", 1.0) != 1.0:
        raise UnsupportedModel(gguf.path, f"RoPE scaling {str(kind)[:40]} is not supported")
