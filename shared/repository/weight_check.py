"""Do the weight files hold exactly the parameters that the configuration calls for?"""

from collections.abc import Sequence
from pathlib import Path

from shared.repository.config import ModelConfig
from shared.repository.errors import BadModelFile
from shared.repository.gguf_config import ROPE_FACTORS, huggingface_name
from shared.repository.gguf_file import read_gguf
from shared.repository.quantised_check import check_quantised, quantised_tensors
from shared.repository.safetensors_file import read_safetensors_header

_DERIVED_SUFFIX = ".rotary_emb.inv_freq"
_TIED = "lm_head.weight"

Shapes = dict[str, tuple[tuple[int, ...], Path]]
"""Parameter name -> (shape, file that holds it)."""


def safetensors_shapes(files: Sequence[Path]) -> Shapes:
    """Shapes in safetensors files; raises BadModelFile for a bad header or a parameter that two files hold."""
    shapes: Shapes = {}
    for file in files:
        for name, entry in read_safetensors_header(file).items():
            if name in shapes:
                raise BadModelFile(file, f"tensor {name[:80]} is in {shapes[name][1].name} too")
            shapes[name] = (entry.shape, file)
    return shapes


def gguf_shapes(file: Path) -> Shapes:
    """Shapes in a GGUF file by Hugging Face name; tensors without such a name keep their own."""
    tensors = read_gguf(file).tensors.values()
    return {huggingface_name(tensor.name) or tensor.name: (tensor.shape, file) for tensor in tensors}


def is_ignored(name: str, config: ModelConfig) -> bool:
    """Tensors that carry nothing: tables computed from the configuration, and the second copy of tied weights."""
    if name == _TIED and config.tie_word_embeddings:
        return True
    return name == ROPE_FACTORS or name.endswith(_DERIVED_SUFFIX)


def check_weights(weight_format: str, files: Sequence[Path], config: ModelConfig) -> None:
    """Compare the weight files with the configuration.

    Raises BadModelFile naming the file and the first parameter that is missing, superfluous or of another shape.
    """
    if config.quantization is not None:
        tensors = quantised_tensors(files)
        read = {name: tensor for name, tensor in tensors.items() if not is_ignored(name, config)}
        check_quantised(read, config, config.quantization, files[0])
        return
    found = gguf_shapes(files[0]) if weight_format == "gguf" else safetensors_shapes(files)
    expected = config.parameter_shapes()
    for name, (shape, file) in found.items():
        if is_ignored(name, config):
            continue
        if name not in expected:
            raise BadModelFile(file, f"unexpected tensor {name[:80]}")
        if shape != expected[name]:
            wanted = list(expected[name])
            raise BadModelFile(file, f"tensor {name} has shape {list(shape)}, the configuration asks for {wanted}")
    for name in expected:
        if name not in found:
            raise BadModelFile(files[0], f"tensor {name} is missing from the weights")
