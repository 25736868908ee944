"""Compiled kernels on disk: what was compiled once for a processor and a version of CUDA is not compiled again."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kernels.cuda.compiler import Compiled, compile_kernels, options, version
from kernels.cuda.sources import read_source

_FORMAT = "1"


class CubinCache:
    """folder: made when something is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = default_folder() if folder is None else folder

    def get(self, source: Path, instances: Sequence[str], arch: str) -> Compiled:
        """Of this source with all that it includes of ours, by this NVRTC. Raises CompilationFailed."""
        file = self._folder / f"{cache_key(source, instances, arch)}.cubin"
        try:
            return msgspec.msgpack.decode(file.read_bytes(), type=Compiled)
        except (FileNotFoundError, msgspec.DecodeError):
            compiled = compile_kernels(source, instances, arch)
            self._keep(file, compiled)
            return compiled

    def _keep(self, file: Path, compiled: Compiled) -> None:
        """Whole or not at all, whoever else writes the same."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as temporary:
            temporary.write(msgspec.msgpack.encode(compiled))
        os.replace(temporary.name, file)


def cache_key(source: Path, instances: Sequence[str], arch: str) -> str:
    """Of everything that the cubin depends on."""
    digest = hashlib.sha256()
    parts = [_FORMAT, str(version()), *options(arch, includes=()), *instances]
    for name, text in read_source(source).items():
        parts += [name, text]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.encode())
    return digest.hexdigest()


def default_folder() -> Path:
    """Below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenbus" / "cubins"
