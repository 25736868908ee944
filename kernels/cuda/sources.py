"""A kernel's file together with what it includes of ours: what decides whether it was compiled before."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def read_source(source: Path, root: Path = ROOT) -> dict[str, str]:
    """Text by name, the file itself first, then its headers of ours however deep, each once.

    Headers in angle brackets are CUDA's, and change with CUDA's version. Raises FileNotFoundError.
    """
    texts = {source.name: source.read_text(encoding="utf-8")}
    waiting = [(source.name, name) for name in _included(texts[source.name])]
    while waiting:
        includer, name = waiting.pop(0)
        if name not in texts:
            texts[name] = _read_header(root, name, includer)
            waiting += [(name, inner) for inner in _included(texts[name])]
    return texts


def _included(text: str) -> list[str]:
    return _INCLUDE.findall(text)


def _read_header(root: Path, name: str, includer: str) -> str:
    try:
        return (root / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{includer} includes {name}, which is not in {root}") from error
