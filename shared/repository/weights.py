"""A stored model's parameters as torch tensors. The only module of the repository that imports torch to read them."""

from collections.abc import Collection, Iterator

import torch
from safetensors import SafetensorError, safe_open

from shared.quantization.scheme import Quantization
from shared.repository.config import ModelConfig
from shared.repository.errors import BadModelFile
from shared.repository.gguf_data import read_gguf_tensor
from shared.repository.gguf_file import GgufFile, GgufTensor, read_gguf
from shared.repository.gguf_parameters import in_huggingface_order, iter_gguf_parameters
from shared.repository.progress import Progress, no_progress
from shared.repository.quantised_weights import iter_quantised_weights
from shared.repository.safetensors_file import read_safetensors_header
from shared.repository.stored_model import StoredModel
from shared.repository.weight_check import is_ignored


def iter_weights(
    model: StoredModel,
    *,
    verify: bool = True,
    only: Collection[str] | None = None,
    progress: Progress = no_progress,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of config.parameter_shapes(), once, as (Hugging Face name, tensor on the CPU).

    Tied models yield no lm_head.weight. dtypes are those of the file (float32, bfloat16, float16); what is quantised
    comes as float32. One tensor is in memory at a time as far as this module is concerned; a safetensors tensor
    may be a view of the mapped file, so copy it before writing to it. verify: compare the files' SHA-256 first. only:
    the parameters to read, None for all.
    Raises ChecksumMismatch or BadModelFile, naming the file, before the first tensor when the files are not sound.
    """
    if verify:
        model.verify_weights(progress)
    if model.weight_format == "gguf":
        return _gguf_weights(read_gguf(model.weight_files[0]), model.config, only)
    if model.config.quantization is not None:
        return _dequantised_weights(model, model.config.quantization, only)
    for file in model.weight_files:
        read_safetensors_header(file)
    return _safetensors_weights(model, only)


def _safetensors_weights(model: StoredModel, only: Collection[str] | None) -> Iterator[tuple[str, torch.Tensor]]:
    for file in model.weight_files:
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():
                    if not is_ignored(name, model.config) and (only is None or name in only):
                        yield name, stored.get_tensor(name)
        except SafetensorError as error:
            raise BadModelFile(file, f"cannot be read ({error})") from error


def _dequantised_weights(
    model: StoredModel, quantization: Quantization, only: Collection[str] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, values in iter_quantised_weights(model, quantization, only):
        yield name, values if isinstance(values, torch.Tensor) else values.dequantise()


def _gguf_weights(
    gguf: GgufFile, config: ModelConfig, only: Collection[str] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor, num_heads in iter_gguf_parameters(gguf, config):
        if only is None or name in only:
            yield name, _gguf_tensor(gguf, tensor, num_heads)


def _gguf_tensor(gguf: GgufFile, tensor: GgufTensor, num_heads: int | None) -> torch.Tensor:
    """The tensor in Hugging Face's row order."""
    values = torch.from_numpy(in_huggingface_order(read_gguf_tensor(gguf, tensor), num_heads))
    return values.view(torch.bfloat16) if tensor.type.name == "BF16" else values
