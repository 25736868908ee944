"""Kernels compiled for the processor, after the emulator's headers, by plain g++."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.cuda.headers import include_folders
from kernels.cuda.sources import ROOT, read_source

EMULATOR = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenbus" / "emulated"
FLAGS = ("-std=c++20", "-fPIC", "-fno-strict-aliasing", "-fno-gnu-unique", "-Wno-unknown-pragmas")
FAST = ("-O2", "-march=native")


@dataclass(frozen=True, slots=True)
class Tree:
    """root: where headers of ours lie; built: where libraries are kept."""

    root: Path = ROOT
    built: Path = CACHE


OURS = Tree()


def build(source: Path, instances: Sequence[str], flags: Sequence[str] = FAST, tree: Tree = OURS) -> Path:
    """The library that exports instance i as kernel<i>. Raises CalledProcessError; g++ says why on stderr."""
    text = unit(source, instances)
    headers = "".join(header.read_text() for header in sorted(EMULATOR.glob("*.h")))
    parts = [text, headers, *flags, *FLAGS, *read_source(source, tree.root).values()]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = tree.built / f"{name}.so"
    if not library.exists():
        tree.built.mkdir(parents=True, exist_ok=True)
        _compile(text, library, flags, tree)
    return library


def unit(source: Path, instances: Sequence[str]) -> str:
    """What is compiled."""
    exports = [f"EMULATOR_EXPORT(kernel{index}, {instance})" for index, instance in enumerate(instances)]
    return "\n".join(['#include "tests/kernels/emulator/emulator.h"', f'#include "{source}"', *exports, ""])


def _compile(text: str, library: Path, flags: Sequence[str], tree: Tree) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        file, built = Path(folder, "unit.cpp"), Path(folder, "unit.so")
        file.write_text(text)
        subprocess.run([*_compiler(flags, tree), "-shared", str(file), "-o", str(built)], check=True)
        built.replace(library)


def precompile(root: Path, flags: Sequence[str]) -> None:
    """The emulator's headers into a tree whose kernels are built with these flags: many builds are faster then."""
    compiled = root / EMULATOR.relative_to(ROOT) / "emulator.h.gch"
    compiled.parent.mkdir(parents=True)
    language = ("-x", "c++-header", "-w")  # it warns of the pragma that keeps headers from being read twice
    header = str(EMULATOR / "emulator.h")
    subprocess.run([*_compiler(flags, OURS), *language, header, "-o", str(compiled)], check=True)


def _compiler(flags: Sequence[str], tree: Tree) -> list[str]:
    return ["g++", *FLAGS, *flags, *(f"-I{include}" for include in (tree.root, ROOT, *include_folders()))]
