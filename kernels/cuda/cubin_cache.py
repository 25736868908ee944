"""Compiled kernels on disk: what was compiled once for a processor and a version of CUDA is not compiled again."""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kernels.cuda.compiler import Compiled, compile_kernels, options, version
from kernels.cuda.headers import headers_version
from kernels.cuda.sources import read_source

_FORMAT = "2"  # the SHA-256 of the rest, then Compiled
_DIGEST_BYTES = 32


class CubinCache:
    """folder: made when something is kept. Where nothing can be kept, all is compiled at each start."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = default_folder() if folder is None else folder

    def get(self, source: Path, instances: Sequence[str], arch: str) -> Compiled:
        """Of this source with all that it includes of ours, by this NVRTC. Raises CompilationFailed, HeadersMissing."""
        file = self._folder / f"{cache_key(source, instances, arch)}.cubin"
        kept = _read(file)
        if kept is not None:
            return kept
        compiled = compile_kernels(source, instances, arch)
        with suppress(OSError):
            self._keep(file, compiled)
        return compiled

    def _keep(self, file: Path, compiled: Compiled) -> None:
        """Whole or not at all, whoever else writes the same."""
        self._folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.msgpack.encode(compiled)
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            whole = Path(scratch, file.name)
            whole.write_bytes(hashlib.sha256(content).digest() + content)
            whole.replace(file)


def _read(file: Path) -> Compiled | None:
    """None if it is not there, or damaged."""
    try:
        kept = file.read_bytes()
    except OSError:
        return None
    digest, content = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    return msgspec.msgpack.decode(content, type=Compiled)


def cache_key(source: Path, instances: Sequence[str], arch: str) -> str:
    """Of everything that the cubin depends on."""
    digest = hashlib.sha256()
    parts = [_FORMAT, str(version()), headers_version(), *options(arch, includes=()), *instances]
    for name, text in read_source(source).items():
        parts += [name, text]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.encode())
    return digest.hexdigest()


def default_folder() -> Path:
    """Below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenbus" / "cubins"
