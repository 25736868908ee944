"""Hugging Face folders of tiny models whose projections are random quantised matrices."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from shared.quantization.codec import store_matrix
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import FOUR_BITS, Quantization
from shared.repository.quantization_json import to_quantization_config
from tests.quantization.matrices import grouped, scaled
from tests.tiny_models import make_tiny_model

_SIZES = {"intermediate_size": 128, "hidden_size": 128, "head_dim": 32}


def make_quantised_model(
    folder: Path, quantization: Quantization, architecture: str = "LlamaForCausalLM", *, shards: int = 1, **options: Any
) -> dict[str, QuantisedMatrix]:
    """Writes the folder; returns the matrices by the names of their weights. shards: a matrix's parts lie in several of
    them. Every weight is some hundredths, as large as those of a model. options: of make_tiny_model."""
    make_tiny_model(folder, architecture, **{**_SIZES, **options})
    tensors = load_file(folder / "model.safetensors")
    matrices = {}
    for seed, name in enumerate([name for name in tensors if name.endswith("_proj.weight")]):
        n_out, n_in = tensors.pop(name).shape
        matrices[name] = _random_matrix(quantization, n_out, n_in, seed)
        parts = store_matrix(quantization, matrices[name])
        tensors.update((name.removesuffix("weight") + end, part) for end, part in parts.items())
    save_shards(folder, tensors, shards)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = to_quantization_config(quantization)
    (folder / "config.json").write_text(json.dumps(config))
    return matrices


def save_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """Tensors dealt out in turn."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{index % shards}.safetensors" for index, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _random_matrix(quantization: Quantization, n_out: int, n_in: int, seed: int) -> QuantisedMatrix:
    if quantization.layout in FOUR_BITS:
        return grouped(n_out, n_in, quantization.group_size, seed=seed, desc_act=quantization.desc_act)
    return scaled(n_out, n_in, torch.float8_e4m3fn if quantization.layout == "fp8" else torch.int8, seed=seed)
