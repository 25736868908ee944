"""Tests are called the same in every process: else the processes of a parallel run refuse to start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def collected(seed: int) -> list[str]:
    """The names of all tests, by a process of its own with this hash seed."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-o", "addopts=--import-mode=importlib", "-q"]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.full  # each collects for ten seconds, which is also what a time in a name needs to show
def test_two_processes_find_the_same_tests() -> None:
    first, second = collected(1), collected(2)
    assert first == second
    assert len(first) == len(set(first)) > 1000
