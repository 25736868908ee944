"""A stored model as a Hugging Face folder, so that other tools load the very same weights."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from shared.repository.config import WeightDtype, to_huggingface
from shared.repository.errors import BadModelFile, ModelError
from shared.repository.huggingface import INDEX_FILE, SINGLE_FILE
from shared.repository.manifest import TOKENIZER_FILE, sync_file
from shared.repository.progress import ByteCounter, Progress, no_progress
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights

MAX_SHARD_BYTES = 4 << 30

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
    chosen = dtype or model.config.torch_dtype
    counter = ByteCounter(f"export {model.name}", _num_bytes(model, chosen), progress)
    tensors = ((name, tensor.to(DTYPES[chosen]).contiguous()) for name, tensor in iter_weights(model))
    return write_folder(model, folder, _counted(tensors, counter), {"torch_dtype": chosen}, max_shard_bytes)


def write_folder(
    model: StoredModel,
    folder: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    changes: Mapping[str, Any],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write the model with these tensors, by their names in safetensors files, to a new folder; returns it.

    changes: fields of config.json that differ from the model's. The folder appears whole and flushed to the disk, or
    not at all. Raises ModelError when it exists or cannot be written.
    """
    check_is_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    built = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write_weights(built, tensors, max_shard_bytes)
        _write_settings(model, built, changes)
        shutil.copyfile(model.tokenizer_file, built / TOKENIZER_FILE)
        for file in built.iterdir():
            file.chmod(0o644)  # safetensors' files are their owner's alone
            sync_file(file)
        built.chmod(0o755)
        sync_file(built)
        os.rename(built, folder)
        sync_file(folder.parent)
    finally:
        shutil.rmtree(built, ignore_errors=True)
    return folder


def check_is_new(folder: Path) -> None:
    """Raises ModelError for a folder that exists, or a link of that name, wherever it leads: it cannot be replaced."""
    if os.path.lexists(folder):
        raise ModelError(f"{folder}: exists already")


def _counted(tensors: Iterable[tuple[str, torch.Tensor]], counter: ByteCounter) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors:
        yield name, tensor
        counter.advance(_bytes_of(tensor))


def _write_weights(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], max_shard_bytes: int) -> None:
    shards: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}
    pending_bytes, total_bytes = 0, 0
    for name, tensor in tensors:
        if pending and pending_bytes + _bytes_of(tensor) > max_shard_bytes:
            shards.append(_write_shard(folder, len(shards), pending))
            pending, pending_bytes = {}, 0
        pending[name] = tensor
        pending_bytes += _bytes_of(tensor)
        total_bytes += _bytes_of(tensor)
    shards.append(_write_shard(folder, len(shards), pending))
    if len(shards) == 1:
        (folder / _shard_name(0)).rename(folder / SINGLE_FILE)
        return
    weight_map = {name: _shard_name(index) for index, names in enumerate(shards) for name in names}
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map})


def _write_shard(folder: Path, index: int, tensors: dict[str, torch.Tensor]) -> list[str]:
    file = folder / _shard_name(index)
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, too, is one
        raise BadModelFile(file, f"cannot be written ({error})") from error
    return list(tensors)


def _shard_name(index: int) -> str:
    return f"model-{index + 1:05d}.safetensors"


def _write_settings(model: StoredModel, folder: Path, changes: Mapping[str, Any]) -> None:
    config = to_huggingface(model.config, model.eos_token_ids, model.bos_token_id)
    _write_json(folder / "config.json", {**config, **changes})
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
    return sum(torch.Size(shape).numel() for shape in shapes) * DTYPES[dtype].itemsize


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
