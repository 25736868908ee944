"""GGUF files made from Hugging Face folders with the gguf package's own writer, as llama.cpp's converter makes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.numpy import load_file

from shared.repository.config_json import parse_config
from tests.gguf_blocks import encode

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What the converter does to query and key rows of Llama models."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face parameter."""
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    if name == "lm_head.weight":
        return "output.weight"
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def write_gguf(
    folder: Path,
    file: Path,
    architecture: str,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: dict[str, Any] | None = None,
    other_types: dict[str, GGMLQuantizationType] | None = None,
) -> dict[str, np.ndarray]:
    """Write a float32 Hugging Face folder as a GGUF file.

    Matrices take matrix_type, vectors stay F32. extra: more metadata, bool, int, float or str by key. other_types: of
    matrices with this in their names. Returns the matrices' quantised bytes by Hugging Face name, before any
    permutation.
    """
    config = parse_config(json.loads((folder / "config.json").read_text()), folder / "config.json")
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    for key, value in (extra or {}).items():
        _add_value(writer, key, value)
    matrices = {}
    for name, values in load_file(folder / "model.safetensors").items():
        array = values.astype(np.float32)
        kind = matrix_type if array.ndim == 2 else GGMLQuantizationType.F32
        kind = next((other for part, other in (other_types or {}).items() if part in name), kind)
        data = encode(array, kind)
        if array.ndim == 2:
            matrices[name] = data
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, num_heads in heads.items():
            if architecture == "llama" and part in name:
                data = permute(data, num_heads)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices


def _add_tokenizer(writer: GGUFWriter, document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in document["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add[type(value)](key, value)
