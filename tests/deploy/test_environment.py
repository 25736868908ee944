"""The set-up runs once, and again when what it depends on changes."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.setup import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("a")
    (tmp_path / "constraints.txt").write_text("b")
    return tmp_path


def install(
    checkout: Path, level: str, monkeypatch: pytest.MonkeyPatch, status: int = 0
) -> tuple[int, list[list[str]]]:
    calls: list[list[str]] = []

    def run(command: list[str], cwd: Path, check: bool) -> subprocess.CompletedProcess[bytes]:
        calls.append(command)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", run)
    prefix = checkout / ".venv"
    prefix.mkdir(exist_ok=True)
    return environment.main([level], checkout, prefix), calls


def test_installs_once(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, calls = install(checkout, "run", monkeypatch)
    assert (status, len(calls)) == (0, 1)
    assert calls[0][-4:] == ["-c", "constraints.txt", "-e", "."]
    assert install(checkout, "run", monkeypatch) == (0, [])


def test_dev_holds_run(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(install(checkout, "run", monkeypatch)[1]) == 1
    assert install(checkout, "dev", monkeypatch)[1][0][-1] == ".[dev]"
    assert install(checkout, "run", monkeypatch)[1] == []


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt"])
def test_installs_again_after_a_change(file: str, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(checkout, "run", monkeypatch)
    (checkout / file).write_text("changed")
    assert len(install(checkout, "run", monkeypatch)[1]) == 1


def test_a_failed_installation_is_not_remembered(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(checkout, "run", monkeypatch, status=1)[0] == 1
    assert "pip could not install" in capsys.readouterr().err
    assert len(install(checkout, "run", monkeypatch)[1]) == 1


def make_python(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            'case "$*" in *--version*) echo "Python 3.9.2";; *) exit 1;; esac',
            "needs Python 3.11 or newer; found: Python 3.9.2",
        ),
        ('case "$*" in *--version*) echo "Python 3.12.1";; *venv*) exit 1;; esac', "apt install python3-venv"),
    ],
)
def test_unfit_python_is_told(script: str, words: str, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"):
        make_python(tools, name, script)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "deploy/setup/venv.sh")],
        cwd=tmp_path,
        env={"PATH": f"{tools}:/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_is_chosen_and_unfit_is_not_replaced(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "deploy/setup/venv.sh")],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "no python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"found: no {tmp_path / 'no python'}" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_pins_are_exact_and_stand_only_in_the_constraints() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    assert "==" not in (ROOT / "pyproject.toml").read_text()


NEEDS_NO_MORE = """
import sys, tomllib
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in names:
            raise ImportError(name)
with open("pyproject.toml", "rb") as file:
    names = {name.replace("-", "_") for name in tomllib.load(file)["project"]["optional-dependencies"]["dev"]}
sys.meta_path.insert(0, Absent())
from tests.chaos.__main__ import main
main(["--help"])
"""


def test_chaos_needs_only_what_running_needs() -> None:
    """Its recipe installs no more."""
    done = subprocess.run([sys.executable, "-c", NEEDS_NO_MORE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "usage: ./just chaos" in done.stdout) == (0, True), done.stderr


def test_wrapper_is_executable() -> None:
    assert os.access(ROOT / "just", os.X_OK)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
