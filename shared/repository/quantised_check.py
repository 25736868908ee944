"""Do the files of a quantised model hold exactly what its configuration calls for?"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.quantization.scheme import Quantization
from shared.quantization.stored import StoredPart, marker, stored_parts
from shared.repository.config import ModelConfig
from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.safetensors_file import FLOATS, QUANTISED, SafetensorsEntry, read_safetensors_header

Found = dict[str, tuple[SafetensorsEntry, Path]]
"""Tensor name -> (its entry, the file that holds it)."""

_WEIGHT = ".weight"
_PROJECTION = "_proj.weight"


def quantised_tensors(files: Sequence[Path]) -> Found:
    """All tensors of the files. Raises BadModelFile for a bad header or a tensor that two files hold."""
    found: Found = {}
    for file in files:
        for name, entry in read_safetensors_header(file, QUANTISED).items():
            if name in found:
                raise BadModelFile(file, f"tensor {name[:80]} is in {found[name][1].name} too")
            found[name] = (entry, file)
    return found


def is_quantised(name: str, quantization: Quantization, found: Found) -> bool:
    """Whether the files hold the parameter of this name in the model's layout. Only projections of layers are."""
    end, dtype = marker(quantization)
    tensor = found.get(name.removesuffix(_WEIGHT) + f".{end}")
    return name.endswith(_PROJECTION) and tensor is not None and tensor[0].dtype == dtype


def extra_bias(name: str) -> str:
    """The bias that some tools write, all zeros, beside a quantised matrix of a model without biases."""
    return name.removesuffix(_WEIGHT) + ".bias"


def check_quantised(found: Found, config: ModelConfig, quantization: Quantization, file: Path) -> None:
    """Compare the tensors with the configuration, but those that carry nothing, which found is without.

    file: that is named when a tensor is nowhere. Raises BadModelFile naming the file and the first tensor that is
    missing, superfluous or of another shape or dtype.
    """
    expected = _expected(found, config, quantization, file)
    for name, (entry, holder) in found.items():
        shown = f"tensor {name[:80]}"
        if name not in expected:
            raise BadModelFile(holder, f"unexpected {shown}")
        part = expected[name]
        if entry.shape not in part.shapes:
            wanted = " or ".join(str(list(shape)) for shape in part.shapes)
            raise BadModelFile(holder, f"{shown} has shape {list(entry.shape)}, the configuration asks for {wanted}")
        if entry.dtype not in part.dtypes:
            supported = ", ".join(part.dtypes)
            raise UnsupportedModel(holder, f"{shown} has dtype {entry.dtype}; supported: {supported}")
    for name, part in expected.items():
        if name not in found and not part.is_optional:
            raise BadModelFile(file, f"tensor {name} is missing from the weights")


def _expected(found: Found, config: ModelConfig, quantization: Quantization, file: Path) -> Mapping[str, StoredPart]:
    shapes = config.parameter_shapes()
    expected: dict[str, StoredPart] = {}
    for name, shape in shapes.items():
        if not is_quantised(name, quantization, found):
            expected[name] = StoredPart((shape,), tuple(FLOATS))
            continue
        try:
            parts = stored_parts(quantization, *shape)
        except ValueError as error:
            raise UnsupportedModel(file, f"{name} cannot be {quantization.layout}: {error}") from error
        expected.update((f"{name.removesuffix(_WEIGHT)}.{end}", part) for end, part in parts.items())
        if extra_bias(name) not in shapes:
            expected[extra_bias(name)] = StoredPart(((shape[0],),), tuple(FLOATS), is_optional=True)
    return expected
