"""What `./just gpu-check` runs with on a machine that has neither a network nor .venv."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.setup import gpu_wheels

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
*find_spec*) exit {no_torch};;
*"pip install"*) mkdir -p .gpu-site/bin; echo "$@" >>.gpu-site/pip;;
*) echo "$@"; echo "PYTHONPATH=$PYTHONPATH"; echo "PATH=$PATH";;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of what is needed to start."""
    (tmp_path / "deploy" / "setup").mkdir(parents=True)
    shutil.copy(ROOT / "just", tmp_path)
    shutil.copy(ROOT / "deploy/setup/gpu_check.sh", tmp_path / "deploy/setup")
    return tmp_path


def write_python(path: Path, no_torch: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PYTHON.format(no_torch=no_torch))
    path.chmod(0o755)


def start(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout / 'bin'}:/usr/bin:/bin"
    return subprocess.run(
        ["sh", str(checkout / "just"), "gpu-check", *words],
        env={"PATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_systems_python_is_taken_and_no_environment_made(checkout: Path) -> None:
    write_python(checkout / "bin/python3")
    done = start(checkout, "--dry-run", "a b")
    assert done.stdout.splitlines()[:2] == ["-m bench.gpu_check --dry-run a b", f"PYTHONPATH={checkout}"]
    assert not (checkout / ".venv").exists()


def test_an_environment_is_taken_where_torch_is_in_it(checkout: Path) -> None:
    write_python(checkout / "bin/python3", no_torch=1)
    write_python(checkout / ".venv/bin/python")
    assert start(checkout).returncode == 0
    write_python(checkout / ".venv/bin/python", no_torch=1)
    done = start(checkout)
    assert (done.returncode, "No torch for python3" in done.stderr) == (2, True)


def test_wheels_are_installed_once_beside_what_is_there(checkout: Path) -> None:
    write_python(checkout / "bin/python3")
    (checkout / ".gpu-wheels").mkdir()
    (checkout / ".gpu-wheels/one-1-py3-none-any.whl").touch()
    for _ in range(2):
        lines = start(checkout).stdout.splitlines()
        assert f"PYTHONPATH={checkout}:{checkout}/.gpu-site" in lines
        assert any(line.startswith(f"PATH={checkout}/.gpu-site/bin:") for line in lines)
    installs = (checkout / ".gpu-site/pip").read_text().splitlines()
    assert len(installs) == 1
    assert "--no-index" in installs[0] and "--target .gpu-site" in installs[0]
    (checkout / ".gpu-wheels/two-1-py3-none-any.whl").touch()
    start(checkout)
    assert "two-1" in (checkout / ".gpu-site/pip").read_text()


# ---- wheels ---------------------------------------------------------------------------------------------------------

OURS = {"services", "shared", "kernels", "deploy", "bench", "tests"}
# On the machine, as docs/gpu.md says.
THERE = {"torch", "cupy", "cupy_backends", "transformers", "safetensors", "tokenizers", "numpy", "jinja2", "flashinfer"}
NAMES = {"nats": "nats-py", "prometheus_client": "prometheus-client", "pynvml": "nvidia-ml-py"}
NOT_RUN = {"matplotlib"}  # bench.report.plot, which gpu-check does not import


def imports(folder: Path) -> set[str]:
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found


def test_wheels_hold_all_that_our_packages_import_and_is_not_there() -> None:
    used = set.union(*(imports(ROOT / name) for name in OURS - {"tests"}))
    used -= OURS | THERE | NOT_RUN | set(sys.stdlib_module_names)
    assert {NAMES.get(name, name) for name in used} <= set(gpu_wheels.NEEDED)


def test_wheels_are_pinned() -> None:
    pins = gpu_wheels.read_pins((ROOT / "constraints.txt").read_text())
    assert set(gpu_wheels.NEEDED) <= set(pins)


def test_the_command_asks_for_the_other_machines_python(tmp_path: Path) -> None:
    words = gpu_wheels.download_command(tmp_path, ["msgspec==1"])
    assert words[-1] == "msgspec==1"
    assert words[words.index("--python-version") + 1] == "3.12"
    assert "--no-deps" in words and "manylinux_2_28_x86_64" in words


def test_nothing_of_this_is_tracked() -> None:
    lines = (ROOT / ".gitignore").read_text().splitlines()
    assert {".gpu-wheels/", ".gpu-site/"} <= set(lines)
    assert os.access(ROOT / "deploy/setup/gpu_check.sh", os.R_OK)
