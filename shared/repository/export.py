"""A stored model as a Hugging Face folder, so that other tools load the very same weights."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from shared.repository.config import WeightDtype, to_huggingface
from shared.repository.errors import ModelError
from shared.repository.huggingface import INDEX_FILE, SINGLE_FILE
from shared.repository.manifest import TOKENIZER_FILE
from shared.repository.progress import ByteCounter, Progress, no_progress
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights

MAX_SHARD_BYTES = 4 << 30

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export_model(
    model: StoredModel,
    folder: Path,
    dtype: WeightDtype | None = None,
    progress: Progress = no_progress,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write config.json, the tokenizer and safetensors in dtype (None: the model's own) to a new folder; returns it.

    The folder appears whole or not at all. Raises ModelError when it exists, and what iter_weights raises.
    """
    if folder.exists():
        raise ModelError(f"{folder}: exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    built = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        chosen = dtype or model.config.torch_dtype
        _write_weights(model, built, chosen, progress, max_shard_bytes)
        _write_settings(model, built, chosen)
        shutil.copyfile(model.tokenizer_file, built / TOKENIZER_FILE)
        built.chmod(0o755)
        os.rename(built, folder)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    return folder


def _write_weights(
    model: StoredModel, folder: Path, dtype: WeightDtype, progress: Progress, max_shard_bytes: int
) -> None:
    shards: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}
    counter = ByteCounter(f"export {model.name}", _num_bytes(model, dtype), progress)
    for name, tensor in iter_weights(model):
        values = tensor.to(_DTYPES[dtype]).contiguous()
        if pending and sum(_bytes_of(item) for item in pending.values()) + _bytes_of(values) > max_shard_bytes:
            shards.append(_write_shard(folder, len(shards), pending))
            pending = {}
        pending[name] = values
        counter.advance(_bytes_of(values))
    shards.append(_write_shard(folder, len(shards), pending))
    if len(shards) == 1:
        (folder / _shard_name(0)).rename(folder / SINGLE_FILE)
        return
    weight_map = {name: _shard_name(index) for index, names in enumerate(shards) for name in names}
    document = {"metadata": {"total_size": counter.total_bytes}, "weight_map": weight_map}
    _write_json(folder / INDEX_FILE, document)


def _write_shard(folder: Path, index: int, tensors: dict[str, torch.Tensor]) -> list[str]:
    save_file(tensors, folder / _shard_name(index), metadata={"format": "pt"})
    return list(tensors)


def _shard_name(index: int) -> str:
    return f"model-{index + 1:05d}.safetensors"


def _write_settings(model: StoredModel, folder: Path, dtype: WeightDtype) -> None:
    config = to_huggingface(model.config, model.eos_token_ids, model.bos_token_id)
    _write_json(folder / "config.json", {**config, "torch_dtype": dtype})
    generation: dict[str, Any] = {"eos_token_id": list(model.eos_token_ids)}
    defaults = dict(model.generation_defaults)
    if "max_tokens" in defaults:
        defaults["max_new_tokens"] = defaults.pop("max_tokens")
    generation.update(defaults)
    if defaults:
        generation["do_sample"] = True
    if model.bos_token_id is not None:
        generation["bos_token_id"] = model.bos_token_id
    _write_json(folder / "generation_config.json", generation)
    tokenizer: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config.max_position_embeddings,
        "bos_token": model.bos_token,
        "eos_token": model.eos_token,
        "chat_template": model.chat_template,
    }
    _write_json(folder / "tokenizer_config.json", {key: value for key, value in tokenizer.items() if value is not None})


def _write_json(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _num_bytes(model: StoredModel, dtype: WeightDtype) -> int:
    shapes = model.config.parameter_shapes().values()
    return sum(torch.Size(shape).numel() for shape in shapes) * _DTYPES[dtype].itemsize


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
