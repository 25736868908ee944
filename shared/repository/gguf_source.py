"""A GGUF file as a ModelSource: configuration, tokenizer and chat template from its metadata."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shared.repository.config import ModelConfig
from shared.repository.errors import BadModelFile
from shared.repository.generation import generation_defaults
from shared.repository.gguf_config import ROPE_FACTORS, gguf_config, rope_factors_to_scaling
from shared.repository.gguf_data import read_gguf_tensor
from shared.repository.gguf_file import GgufFile, read_gguf
from shared.repository.gguf_tokenizer import read_tokenizer
from shared.repository.huggingface import MAX_TEMPLATE_BYTES
from shared.repository.manifest import TEMPLATE_FILE, TOKENIZER_FILE, is_safe_file_name
from shared.repository.source import ModelSource, adds_bos, check_token_ids
from shared.repository.weight_check import check_weights

_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def inspect_gguf(file: Path, description: str | None = None) -> ModelSource:
    """Check a GGUF file and read all but its weights; nothing is copied yet.

    Raises BadModelFile or UnsupportedModel, naming the file.
    """
    gguf = read_gguf(file)
    config = _config(gguf)
    check_weights("gguf", [file], config)
    found = read_tokenizer(gguf)
    check_token_ids(config, found.tokenizer, found.eos_token_ids, file)
    texts = {TOKENIZER_FILE: found.tokenizer.to_str(pretty=True)}
    if found.chat_template is not None:
        if len(found.chat_template) > MAX_TEMPLATE_BYTES:
            raise BadModelFile(file, f"the chat template is longer than {MAX_TEMPLATE_BYTES} characters")
        texts[TEMPLATE_FILE] = found.chat_template
    name = file.name if is_safe_file_name(file.name) else "model.gguf"
    return ModelSource(
        description=description or file.name,
        config=config,
        weight_format="gguf",
        weight_files=(name,),
        files={name: file},
        texts=texts,
        bos_token=_text(found.tokenizer.id_to_token, found.bos_token_id),
        bos_token_id=found.bos_token_id,
        eos_token=_text(found.tokenizer.id_to_token, next(iter(found.eos_token_ids), None)),
        eos_token_ids=found.eos_token_ids,
        add_bos_token=adds_bos(found.tokenizer, found.bos_token_id),
        generation_defaults=generation_defaults(_sampling(gguf.metadata), file),
    )


def _config(gguf: GgufFile) -> ModelConfig:
    """gguf_config, with the RoPE scaling that hides in a tensor."""
    config = gguf_config(gguf)
    factors = gguf.tensors.get(ROPE_FACTORS)
    if factors is None:
        return config
    if factors.type.name != "F32":
        raise BadModelFile(gguf.path, f"tensor {ROPE_FACTORS} is not F32")
    divisors = read_gguf_tensor(gguf, factors)
    scaling = rope_factors_to_scaling(gguf, config.head_dim, config.rope_theta, divisors)
    return msgspec.structs.replace(config, rope_scaling=scaling)


def _sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The authors' sampling parameters under the names of generation_config.json; float32 rounded to six digits."""
    found = {name: metadata[key] for key, name in _SAMPLING_KEYS.items() if key in metadata}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


def _text(id_to_token: Any, token_id: int | None) -> str | None:
    return None if token_id is None else id_to_token(token_id)
