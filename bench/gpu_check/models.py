"""Models by their shape, with random weights: the real files are too large to travel."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from shared.repository.config import Llama3RopeScaling, ModelConfig, to_huggingface
from shared.repository.huggingface import inspect_folder
from shared.repository.store import ModelRepository

SMOLLM2 = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=100000.0,
    tie_word_embeddings=True,
)
LLAMA = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
)

# So small beside what the layers add that the likeliest token is not the one that was read.
_EMBEDDING_SCALE = 0.05
_EOS = 0


def small(config: ModelConfig) -> ModelConfig:
    """Of the same heads, with two layers and few tokens: for the emulator."""
    return msgspec.structs.replace(
        config, num_hidden_layers=2, vocab_size=512, intermediate_size=256, max_position_embeddings=512
    )


def random_weights(
    config: ModelConfig, seed: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16
) -> Iterator[tuple[str, Tensor]]:
    """Every parameter, rounded to dtype, the same for a seed on every machine of this kind of device.

    Projections keep the size of what they are given, so that each layer has its share in the result.
    """
    generator = torch.Generator(device).manual_seed(seed)
    for name, shape in config.parameter_shapes().items():
        values = torch.randn(shape, generator=generator, device=device)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name.startswith("model.embed_tokens"):
            values = _EMBEDDING_SCALE * values
        else:
            values = values / math.sqrt(shape[-1])
        yield name, values.to(dtype)


def num_weights(config: ModelConfig) -> int:
    """That a decode step reads: of the embedding a row for each token alone, unless it is lm_head as well."""
    total = sum(math.prod(shape) for shape in config.parameter_shapes().values())
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return total - embedding


def kv_bytes_of_token(config: ModelConfig) -> int:
    """In all layers, in two bytes a number."""
    return 2 * 2 * config.num_hidden_layers * config.kv_size


def store_random_model(config: ModelConfig, name: str, folder: Path) -> None:
    """In the repository that this process's environment names (XDG_DATA_HOME), with a tokenizer of bytes and of words
    that stand for nothing. folder: for the files meanwhile."""
    folder.mkdir(parents=True)
    document = to_huggingface(config, (_EOS,), _EOS)
    (folder / "config.json").write_bytes(msgspec.json.encode(document))
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode({"bos_token": "<|0|>", "eos_token": "<|0|>"}))
    byte_tokenizer(config.vocab_size).save(str(folder / "tokenizer.json"))
    save_file(dict(random_weights(config, seed=0)), folder / "model.safetensors", metadata={"format": "pt"})
    ModelRepository().add(inspect_folder(folder), name)


def byte_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level: id 0 is special, then the 256 bytes, then words that no text has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|0|>", *alphabet]
    tokens += [f"w{number}" for number in range(vocab_size - len(tokens))]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|0|>"])
    return tokenizer
