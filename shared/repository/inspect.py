"""From a path that somebody names to a ModelSource, whatever kind of model lies there."""

from pathlib import Path

from shared.repository.errors import BadModelFile
from shared.repository.gguf_file import MAGIC
from shared.repository.gguf_source import inspect_gguf
from shared.repository.huggingface import inspect_folder, refuse_pickle
from shared.repository.source import ModelSource


def inspect_path(path: Path) -> ModelSource:
    """Check a Hugging Face folder or a GGUF file; nothing is copied yet.

    Raises BadModelFile or UnsupportedModel, naming the file at fault.
    """
    if path.is_dir():
        return inspect_folder(path)
    refuse_pickle(path)
    if path.suffix.lower() == ".safetensors":
        raise BadModelFile(path, "name the folder that holds it: config.json and tokenizer.json are needed too")
    if path.suffix.lower() != ".gguf" and not _has_magic(path):
        raise BadModelFile(path, "neither a model folder nor a GGUF file")
    return inspect_gguf(path)


def default_name(path: Path) -> str:
    """A model name from a path: its last part without .gguf, in lower case, other characters than a name's as '-'."""
    last = path.resolve().name
    stem = last[: -len(".gguf")] if last.lower().endswith(".gguf") else last
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in stem.lower())
    return kept.strip("._-")[:96]


def _has_magic(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise BadModelFile(path, f"cannot be read ({error.strerror})") from error
