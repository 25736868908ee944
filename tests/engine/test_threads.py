"""Threads sleep at barriers unless the operator decided otherwise."""

import subprocess
import sys

import pytest

from services.worker.engine.threads import sleep_while_waiting


def test_waiting_threads_sleep_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    sleep_while_waiting()
    assert _environment("OMP_WAIT_POLICY") == "passive"


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "1000")])
def test_the_operators_choice_stands(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv(name, value)
    sleep_while_waiting()
    assert _environment("OMP_WAIT_POLICY") == ("active" if name == "OMP_WAIT_POLICY" else "")


def _environment(name: str) -> str:
    """A variable as a library in a child process sees it."""
    code = f"import os; print(os.environ.get({name!r}, ''), end='')"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
