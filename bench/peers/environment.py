"""A peer's virtual environment: made once, found again, asked for versions."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from bench.errors import BenchError

STAMP = "tokenbus-peer.json"


def default_folder() -> Path:
    """Below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tokenbus" / "peers"


class Environment:
    """folder: of the virtual environment; name: the peer's."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.folder = root / name
        self.python = self.folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        """Whether it was made to the end."""
        return (self.folder / STAMP).is_file()

    def require(self) -> None:
        """Raises BenchError if it is not there."""
        if not self.is_ready:
            raise BenchError(f"{self.name} is not installed in {self.folder}: python -m bench.peers setup {self.name}")

    def create(self) -> None:
        """An empty one with pip. Raises BenchError."""
        self._run([sys.executable, "-m", "venv", "--clear", str(self.folder)], {})

    def install(self, *words: str, env: Mapping[str, str] | None = None) -> None:
        """`pip install WORDS`, without the caps and constraints of this project. Raises BenchError."""
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        self._run([*pip, *words], env or {})

    def finish(self) -> None:
        """Note that all of it is there."""
        versions = {each.name: each.version for each in metadata.distributions(path=self._packages())}
        (self.folder / STAMP).write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Of those packages that are installed."""
        found = {name: next(iter(metadata.distributions(name=name, path=self._packages())), None) for name in names}
        return {name: each.version for name, each in found.items() if each is not None}

    def requirements(self, package: str) -> list[str]:
        """What an installed package says that it needs. Raises BenchError if it is not installed."""
        for found in metadata.distributions(name=package, path=self._packages()):
            return list(found.requires or ())
        raise BenchError(f"{package} is not in {self.folder}")

    def site_packages(self) -> Path:
        """Where its packages are. Raises BenchError if it has none."""
        for folder in sorted(self.folder.glob("lib/python3*/site-packages")):
            return folder
        raise BenchError(f"{self.folder} is no virtual environment")

    def _packages(self) -> list[str]:
        return [str(self.site_packages())]

    def _run(self, words: list[str], env: Mapping[str, str]) -> None:
        status = subprocess.run(words, env={**os.environ, **env}, stdin=subprocess.DEVNULL, check=False).returncode
        if status != 0:
            raise BenchError(f"{self.name}: {' '.join(words[:6])} ... ended with status {status}; its reason is above")


def without(requirements: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """Requirement lines but those of these packages and those of optional extras."""
    skipped = {_canonical(name) for name in left_out}
    kept = []
    for line in requirements:
        name, _, marker = line.partition(";")
        found = re.match(r"[A-Za-z0-9._-]+", name.strip())
        if found and "extra" not in marker and _canonical(found[0]) not in skipped:
            kept.append(line)
    return kept


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
