"""The parameters of a stored model whose projections are quantised: what a worker needs of a Hugging Face folder."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.quantization.codec import load_matrix
from shared.quantization.matrix import QuantisedMatrix
from shared.quantization.scheme import Quantization
from shared.quantization.stored import stored_parts
from shared.repository.errors import BadModelFile
from shared.repository.quantised_check import Found, extra_bias, is_quantised, quantised_tensors
from shared.repository.stored_model import StoredModel


def quantised_names(model: StoredModel, quantization: Quantization) -> set[str]:
    """Of the parameters that the model's files hold quantised. Raises BadModelFile, naming the file."""
    found = quantised_tensors(model.weight_files)
    return {name for name in model.config.parameter_shapes() if is_quantised(name, quantization, found)}


def iter_quantised_weights(
    model: StoredModel, quantization: Quantization, only: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor | QuantisedMatrix]]:
    """Every parameter of config.parameter_shapes(), once, as (Hugging Face name, tensor or quantised matrix). only: the
    parameters to read, None for all.

    The parts of a matrix may lie in several files. model: its weights' checksums the caller has compared. One parameter
    is in memory at a time as far as this module is concerned. Raises BadModelFile, naming the file.
    """
    found = quantised_tensors(model.weight_files)
    with ExitStack() as stack:
        files = {file: _opened(file, stack) for file in model.weight_files}
        reader = _Reader(found, files)
        for name, shape in model.config.parameter_shapes().items():
            if only is not None and name not in only:
                continue
            if not is_quantised(name, quantization, found):
                yield name, reader.tensor(name)
                continue
            _check_extra_bias(name, model, reader)
            stem = name.removesuffix("weight")
            parts = {
                end: reader.tensor(stem + end) for end in stored_parts(quantization, *shape) if stem + end in found
            }
            try:
                yield name, load_matrix(quantization, parts, shape[1])
            except ValueError as error:
                raise BadModelFile(model.path, f"{name}: {error}") from error


def read_input_groups(model: StoredModel, end: str) -> dict[str, Tensor]:
    """The group of each input, int64 [n_in], of the matrices whose names end so and whose files say it (desc_act).

    model: as in iter_quantised_weights. Raises BadModelFile, naming the file.
    """
    found = quantised_tensors(model.weight_files)
    with ExitStack() as stack:
        reader = _Reader(found, {file: _opened(file, stack) for file in model.weight_files})
        stems = (name.removesuffix("weight") for name in model.config.parameter_shapes() if name.endswith(end))
        return {f"{stem}weight": reader.tensor(f"{stem}g_idx").long() for stem in stems if f"{stem}g_idx" in found}


class _Reader:
    """Tensors by name, from whichever file holds them."""

    def __init__(self, found: Found, files: dict[Path, Any]) -> None:
        self.found = found
        self._files = files

    def tensor(self, name: str) -> Tensor:
        file = self.found[name][1]
        try:
            tensor: Tensor = self._files[file].get_tensor(name)
        except SafetensorError as error:
            raise BadModelFile(file, f"cannot be read ({error})") from error
        return tensor


def _opened(file: Path, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(file, framework="pt"))
    except SafetensorError as error:
        raise BadModelFile(file, f"cannot be read ({error})") from error


def _check_extra_bias(name: str, model: StoredModel, reader: _Reader) -> None:
    bias = extra_bias(name)
    if bias in reader.found and bias not in model.config.parameter_shapes() and reader.tensor(bias).any():
        raise BadModelFile(reader.found[bias][1], f"unexpected tensor {bias}, which is not zero")
