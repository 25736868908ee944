"""Default sampling parameters of a model's authors, from generation_config.json."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.repository.errors import BadModelFile

GENERATION_FILE = "generation_config.json"

_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
_BOUNDS: dict[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0.0 <= value <= 2.0,
    "top_p": lambda value: 0.0 < value <= 1.0,
    "top_k": lambda value: value >= 0 and value % 1 == 0,
    "min_p": lambda value: 0.0 <= value <= 1.0,
    "repetition_penalty": lambda value: 0.0 < value <= 2.0,
    "max_tokens": lambda value: value >= 1 and value % 1 == 0,
}


def generation_defaults(document: Mapping[str, Any], file: Path) -> dict[str, int | float]:
    """Sampling parameters of a generation_config.json under vLLM's names; absent and null ones are left out.

    file names the source in messages. Raises BadModelFile for a value that is no number or out of its range.
    """
    defaults: dict[str, int | float] = {}
    for theirs, ours in _NAMES.items():
        value = document.get(theirs)
        if value is None:
            continue
        if type(value) not in (int, float) or not _BOUNDS[ours](value):
            raise BadModelFile(file, f"{theirs} is out of range")
        defaults[ours] = value
    return defaults
