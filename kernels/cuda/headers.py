"""Where CUDA's headers lie: the wheels' folder beside this Python's packages, or an installed toolkit."""

import importlib.util
import os
import re
from pathlib import Path

# The second one is in a wheel of its own since CUDA 13: some machines have the one without the other.
_MARKS = ("cuda_bf16.h", "crt/host_defines.h")
_WHEELS = ("cu13", "cuda_runtime")  # under the package nvidia; the second one is how CUDA 12's wheels lay
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_DEFAULT_TOOLKIT = Path("/usr/local/cuda")
_VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)


class HeadersMissing(RuntimeError):
    """CUDA's headers are nowhere, or not all of them."""


def include_folders() -> list[Path]:
    """Folders for a compiler's -I. Raises HeadersMissing with where was looked."""
    tried = [folder / "include" for folder in (*_wheel_folders(), *_toolkit_folders())]
    for folder in tried:
        if all((folder / mark).is_file() for mark in _MARKS):
            return [folder, *(inner for inner in (folder / "cccl",) if inner.is_dir())]
    looked = ", ".join(str(folder) for folder in tried)
    raise HeadersMissing(
        f"no {' and '.join(_MARKS)} in {looked}; install tokenbus[cuda], or set CUDA_HOME to a toolkit of CUDA 13"
    )


def headers_version() -> str:
    """Of CUDA, e.g. 13020; they need not be of NVRTC's own version. Raises HeadersMissing."""
    found = _VERSION.search((include_folders()[0] / "cuda.h").read_text(encoding="utf-8", errors="replace"))
    return found[1] if found is not None else "unknown"


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    packages = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    return [package / name for package in packages for name in _WHEELS]


def _toolkit_folders() -> list[Path]:
    named = [Path(os.environ[name]) for name in _TOOLKITS if os.environ.get(name)]
    return [*named, _DEFAULT_TOOLKIT]
