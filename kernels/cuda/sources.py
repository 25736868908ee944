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
    waiting = [*_included(texts[source.name])]
    while waiting:
        name = waiting.pop(0)
        if name not in texts:
            texts[name] = (root / name).read_text(encoding="utf-8")
            waiting += _included(texts[name])
    return texts


def _included(text: str) -> list[str]:
    return _INCLUDE.findall(text)
