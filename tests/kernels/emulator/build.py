"""Kernels compiled for the processor, after the emulator's headers, by plain g++."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernels.cuda.headers import include_folders
from kernels.cuda.sources import ROOT, read_source

EMULATOR = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenbus" / "emulated"
FLAGS = ("-std=c++20", "-fPIC", "-shared", "-fno-strict-aliasing", "-fno-gnu-unique", "-Wno-unknown-pragmas")
FAST = ("-O2", "-march=native")


def build(source: Path, instances: Sequence[str], flags: Sequence[str] = FAST) -> Path:
    """The library that exports instance i as kernel<i>. Raises CalledProcessError; g++ says why on stderr."""
    text = unit(source, instances)
    headers = "".join(header.read_text() for header in sorted(EMULATOR.glob("*.h")))
    parts = [text, headers, *flags, *FLAGS, *read_source(source).values()]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = CACHE / f"{name}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _compile(text, library, flags)
    return library


def unit(source: Path, instances: Sequence[str]) -> str:
    """What is compiled."""
    exports = [f"EMULATOR_EXPORT(kernel{index}, {instance})" for index, instance in enumerate(instances)]
    return "\n".join(['#include "tests/kernels/emulator/emulator.h"', f'#include "{source}"', *exports, ""])


def _compile(text: str, library: Path, flags: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        file, built = Path(folder, "unit.cpp"), Path(folder, "unit.so")
        file.write_text(text)
        includes = [f"-I{include}" for include in (ROOT, *include_folders())]
        subprocess.run(["g++", *FLAGS, *flags, *includes, str(file), "-o", str(built)], check=True)
        built.replace(library)
