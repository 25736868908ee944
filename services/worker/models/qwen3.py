"""Qwen3: each query and key head is normalised before it is turned; a head's size is free of the hidden size."""

from services.worker.models.decoder import Decoder, attention_output, build_decoder, query_key_value, rms_norm_of
from services.worker.models.layers import Attention
from services.worker.models.parameters import Parameters
from shared.repository.config import ModelConfig


def build(config: ModelConfig, parameters: Parameters) -> Decoder:
    """The model of these weights."""
    return build_decoder(config, parameters, _attention)


def _attention(config: ModelConfig, parameters: Parameters, layer: int) -> Attention:
    prefix = f"model.layers.{layer}.self_attn."
    return Attention(
        query_key_value=query_key_value(parameters, layer, config.attention_bias),
        output=attention_output(parameters, layer, config.attention_output_bias),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        sliding_window=config.window_of(layer),
        query_norm=rms_norm_of(config, parameters, prefix + "q_norm.weight"),
        key_norm=rms_norm_of(config, parameters, prefix + "k_norm.weight"),
    )
