"""Qwen2 and Qwen2.5: biases on queries, keys and values; a sliding window in the upper layers where configured."""

from services.worker.models.decoder import Decoder, attention_output, build_decoder, query_key_value
from services.worker.models.layers import Attention
from services.worker.models.parameters import Parameters
from shared.repository.config import ModelConfig


def build(config: ModelConfig, parameters: Parameters) -> Decoder:
    """The model of these weights."""
    return build_decoder(config, parameters, _attention)


def _attention(config: ModelConfig, parameters: Parameters, layer: int) -> Attention:
    return Attention(
        query_key_value=query_key_value(parameters, layer, has_bias=True),
        output=attention_output(parameters, layer),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        sliding_window=config.window_of(layer),
    )
