"""From a Hugging Face config.json to a ModelConfig: every field checked, everything unknown to the engine refused.

Both spellings are read: rope_theta, rope_scaling and torch_dtype of old files, rope_parameters and dtype of new ones.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.repository.config import ARCHITECTURES, Family, Llama3RopeScaling, ModelConfig, WeightDtype
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.fields import Fields, shown
from shared.repository.quantization_json import parse_quantization

MAX_LAYERS = 4096

_DTYPES: dict[str, WeightDtype] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
_DEFAULT_KV_HEADS: dict[Family, int | None] = {"llama": None, "mistral": 8, "qwen2": 32, "qwen3": 32}
_DEFAULT_WINDOW: dict[Family, int | None] = {"llama": None, "mistral": 4096, "qwen2": 4096, "qwen3": 4096}
_DEFAULT_MAX_WINDOW_LAYERS = 28


def parse_config(document: Mapping[str, Any], file: Path) -> ModelConfig:
    """The ModelConfig that a config.json describes.

    file names the source in messages. Raises UnsupportedModel for an architecture, activation, RoPE type or
    quantisation that the engine does not run, and for remote code; BadModelFile for a missing or impossible value.
    """
    architecture = _architecture(document, file)
    family = ARCHITECTURES[architecture]
    fields = Fields(document, file)
    if fields.text("hidden_act", "silu") != "silu":
        raise UnsupportedModel(file, f"hidden_act {shown(document['hidden_act'])} is not supported, only silu is")
    _refuse_other_attention(document, file)
    num_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", _DEFAULT_KV_HEADS[family] or num_heads)
    if num_heads % num_kv_heads:
        reason = f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        raise BadModelFile(file, reason)
    hidden_size = fields.integer("hidden_size")
    rope_theta, rope_scaling = _rope(fields)
    window, num_full = _sliding_window(fields, family, num_layers)
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        max_position_embeddings=fields.integer("max_position_embeddings", most=1 << 31),
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=family == "qwen2" or (bias and family in ("llama", "qwen3")),
        attention_output_bias=bias and family in ("llama", "qwen3"),
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        qk_norm=family == "qwen3",
        sliding_window=window,
        num_full_attention_layers=num_full,
        torch_dtype=_dtype(fields),
        quantization=parse_quantization(document, file),
    )


def _architecture(document: Mapping[str, Any], file: Path) -> str:
    """The class name in `architectures`; refuses remote code and classes that the registry lacks."""
    if document.get("auto_map") is not None:
        raise UnsupportedModel(file, "auto_map asks for code from the model's folder, which is never run")
    names = document.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise BadModelFile(file, "architectures must be a list of one class name")
    if names[0] not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(file, f"unknown architecture {shown(names[0])}; known architectures: {known}")
    return names[0]


def _refuse_other_attention(document: Mapping[str, Any], file: Path) -> None:
    """What would change the scores of attention, and is of no architecture that the engine runs."""
    if document.get("alibi") or document.get("use_alibi") or document.get("position_embedding_type") == "alibi":
        raise UnsupportedModel(file, "ALiBi is not supported: positions are told by RoPE alone")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if document.get(name) is not None:
            raise UnsupportedModel(file, f"{name} {shown(document[name])} is not supported, only null is")


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if fields.document.get("head_dim") is None and family != "qwen3" and hidden_size % num_heads:
        reason = (
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, and head_dim is missing"
        )
        raise BadModelFile(fields.file, reason)
    head_dim = fields.integer("head_dim", 128 if family == "qwen3" else max(1, hidden_size // num_heads), most=1 << 14)
    if head_dim % 2:
        raise BadModelFile(fields.file, f"head_dim {head_dim} is odd, RoPE turns pairs")
    return head_dim


def _rope(fields: Fields) -> tuple[float, Llama3RopeScaling | None]:
    """(rope_theta, scaling) from either spelling of config.json."""
    new, old = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    values = Fields({**old, **new}, fields.file)
    theta = values.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    kind = values.text("rope_type", values.text("type", "default"))
    partial = values.positive("partial_rotary_factor", fields.positive("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModel(fields.file, f"partial_rotary_factor {partial} is not supported, only 1 is")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModel(fields.file, f"RoPE type {shown(kind)} is not supported; known types: default, llama3")
    scaling = Llama3RopeScaling(
        factor=values.positive("factor"),
        low_freq_factor=values.positive("low_freq_factor"),
        high_freq_factor=values.positive("high_freq_factor"),
        original_max_position_embeddings=values.integer("original_max_position_embeddings", most=1 << 31),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise BadModelFile(fields.file, "high_freq_factor must be greater than low_freq_factor")
    return theta, scaling


def _sliding_window(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, int]:
    """(sliding_window, number of leading layers without it)."""
    document = fields.document
    num_full = 0
    if family == "llama":
        window = None
    elif family == "mistral":
        is_null = "sliding_window" in document and document["sliding_window"] is None
        window = None if is_null else fields.integer("sliding_window", _DEFAULT_WINDOW[family], most=1 << 31)
    elif fields.flag("use_sliding_window", False):
        window = fields.integer("sliding_window", _DEFAULT_WINDOW[family], most=1 << 31)
        num_full = fields.integer("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS, least=0)
    else:
        window = None
    num_full = min(num_full, num_layers)
    if window is None or num_full == num_layers:
        window, num_full = None, 0
    _check_layer_types(document.get("layer_types"), window, num_full, num_layers, fields.file)
    return window, num_full


def _check_layer_types(given: Any, window: int | None, num_full: int, num_layers: int, file: Path) -> None:
    """layer_types, when given, must say what the window fields say: no alternating layers."""
    if given is None:
        return
    full = num_layers if window is None else num_full
    expected = ["full_attention"] * full + ["sliding_attention"] * (num_layers - full)
    if given != expected:
        raise UnsupportedModel(file, "layer_types differs from what sliding_window and max_window_layers say")


def _dtype(fields: Fields) -> WeightDtype:
    name = fields.text("torch_dtype", fields.text("dtype", "bfloat16")).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedModel(fields.file, f"torch_dtype {shown(name)} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
