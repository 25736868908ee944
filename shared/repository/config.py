"""A model's hyper-parameters as one typed value, read from a Hugging Face `config.json`."""

from typing import Any, Literal

import msgspec

from shared.quantization.scheme import Quantization

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
WeightDtype = Literal["float32", "bfloat16", "float16"]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


class Llama3RopeScaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """RoPE frequencies stretched by wavelength, as Llama 3.1 and later do.

    With the wavelength w of a frequency f: w < original / high_freq_factor keeps f, w > original / low_freq_factor
    takes f / factor, and between them the two are blended linearly in original / w.
    original_max_position_embeddings: context length of the pretraining, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hyper-parameters of a decoder-only transformer with RMSNorm, RoPE and a SwiGLU MLP.

    architecture: class name as config.json has it, a key of ARCHITECTURES.
    attention_bias: biases on q_proj, k_proj and v_proj; attention_output_bias: one on o_proj.
    qk_norm: RMSNorm over head_dim on queries and keys before RoPE (`q_norm`, `k_norm` of each layer).
    sliding_window: a token attends to itself and sliding_window - 1 tokens before it, in the layers from
    num_full_attention_layers on; None: every layer attends to everything.
    max_position_embeddings: longest context in tokens. torch_dtype: what dtype "auto" means.
    quantization: of the projections in the model's files, None where they are plain floats.

    Defaults are left out of manifests, so that an older release reads those of models that it can run.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_full_attention_layers: int = 0
    torch_dtype: WeightDtype = "bfloat16"
    quantization: Quantization | None = None

    @property
    def family(self) -> Family:
        """The model file that runs it: one of llama, mistral, qwen2, qwen3."""
        return ARCHITECTURES[self.architecture]

    @property
    def q_size(self) -> int:
        """Rows of q_proj: num_attention_heads * head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of k_proj and of v_proj: num_key_value_heads * head_dim."""
        return self.num_key_value_heads * self.head_dim

    def window_of(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, itself included; None for full attention."""
        return None if layer < self.num_full_attention_layers else self.sliding_window

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by its Hugging Face name, with its shape (linear weights are [out, in])."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            attention, mlp = prefix + "self_attn.", prefix + "mlp."
            shapes[prefix + "input_layernorm.weight"] = (hidden,)
            for name, rows in (("q_proj", self.q_size), ("k_proj", self.kv_size), ("v_proj", self.kv_size)):
                shapes[f"{attention}{name}.weight"] = (rows, hidden)
                if self.attention_bias:
                    shapes[f"{attention}{name}.bias"] = (rows,)
            shapes[attention + "o_proj.weight"] = (hidden, self.q_size)
            if self.attention_output_bias:
                shapes[attention + "o_proj.bias"] = (hidden,)
            if self.qk_norm:
                shapes[attention + "q_norm.weight"] = (self.head_dim,)
                shapes[attention + "k_norm.weight"] = (self.head_dim,)
            shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
            for name, rows, columns in (
                ("gate_proj", inner, hidden),
                ("up_proj", inner, hidden),
                ("down_proj", hidden, inner),
            ):
                shapes[f"{mlp}{name}.weight"] = (rows, columns)
                if self.mlp_bias:
                    shapes[f"{mlp}{name}.bias"] = (rows,)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


def to_huggingface(config: ModelConfig, eos_token_ids: tuple[int, ...], bos_token_id: int | None) -> dict[str, Any]:
    """The config.json that Hugging Face's transformers reads as the same model."""
    rope: dict[str, Any] | None = None
    if config.rope_scaling is not None:
        rope = {"rope_type": "llama3", **msgspec.to_builtins(config.rope_scaling)}
    document: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": config.family,
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": rope,
        "tie_word_embeddings": config.tie_word_embeddings,
        "sliding_window": config.sliding_window,
        "torch_dtype": config.torch_dtype,
        "bos_token_id": bos_token_id,
        "eos_token_id": list(eos_token_ids),
    }
    if config.family in ("llama", "qwen3"):
        document["attention_bias"] = config.attention_bias
    if config.family == "llama":
        document["mlp_bias"] = config.mlp_bias
    if config.family in ("qwen2", "qwen3"):
        document["use_sliding_window"] = config.sliding_window is not None
        document["max_window_layers"] = config.num_full_attention_layers
    return document
