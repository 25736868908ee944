"""Llama 2 and 3, SmolLM and SmolLM2: plain grouped-query attention, biases only where the configuration says so."""

from services.worker.models.decoder import Decoder, attention_output, build_decoder, query_key_value
from services.worker.models.layers import Attention
from services.worker.models.parameters import Parameters
from shared.repository.config import ModelConfig


def build(config: ModelConfig, parameters: Parameters) -> Decoder:
    """The model of these weights."""
    return build_decoder(config, parameters, _attention)


def _attention(config: ModelConfig, parameters: Parameters, layer: int) -> Attention:
    return Attention(
        query_key_value=query_key_value(parameters, layer, config.attention_bias),
        output=attention_output(parameters, layer, config.attention_output_bias),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )
