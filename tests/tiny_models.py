"""Tiny random models in Hugging Face's own layout, small enough to be made anew in every test session."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CORPUS = [
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "Die Hauptstadt von Frankreich heißt Paris; the river that runs through it is the Seine.",
    "Чай горячий, снег холодный. 数を数える。 안녕하세요 세계. שלום עולם.",
    "for index in range(10): total = total + index  # 3.14159",
]

_CLASSES: dict[str, tuple[Any, Any]] = {
    "LlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "MistralForCausalLM": (MistralConfig, MistralForCausalLM),
    "Qwen2ForCausalLM": (Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": (Qwen3Config, Qwen3ForCausalLM),
}


def make_tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of 384 tokens, the special ones first (ids 0 to 2)."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def make_tiny_model(
    folder: Path,
    architecture: str,
    seed: int = 0,
    *,
    max_shard_size: str = "5GB",
    torch_dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Path:
    """Write a random model and its tokenizer to folder, as save_pretrained does; return folder.

    architecture: one of ARCHITECTURES. overrides replace fields of the transformers config (tie_word_embeddings,
    sliding_window, rope_scaling, head_dim, ...). max_shard_size: "40KB" makes several safetensors files and an index.
    The weights are drawn wide enough for logits that differ clearly from token to token.
    """
    config_class, model_class = _CLASSES[architecture]
    tokenizer = make_tiny_tokenizer()
    fields: dict[str, Any] = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "tie_word_embeddings": architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    }
    if architecture == "MistralForCausalLM":
        fields["sliding_window"] = None
    if architecture == "Qwen3ForCausalLM":
        fields["head_dim"] = 32
    fields.update(overrides)
    config = config_class(**fields)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config)
        _randomise_vectors(model)
    model.to(torch_dtype)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    generation = {"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    return folder


def _randomise_vectors(model: torch.nn.Module) -> None:
    """Biases start at 0 and norms at 1, which would hide a mistake in either: draw both around these values."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
