"""Bugs planted in kernels: each is caught by the operation's own checks, which pass without it."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kernels.cuda.sources import ROOT
from tests.kernels.cuda import mutants
from tests.kernels.cuda.mutant import Mutant
from tests.kernels.cuda.mutants import ALL, NONE, verdict
from tests.kernels.cuda.small_checks import rms_norm
from tests.kernels.emulator.forked import Outcome

NAMES = [NONE, *(pytest.param(name, marks=pytest.mark.full) if ALL[name].is_long_run else name for name in ALL)]


@pytest.fixture(scope="module")
def program() -> Iterator["subprocess.Popen[str]"]:
    """It tries the mutants that it is named: for all of them the emulator is compiled once."""
    command = [sys.executable, "-m", mutants.__name__]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_caught(program: "subprocess.Popen[str]", name: str) -> None:
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(f"{name}\n")
    program.stdin.flush()
    answer, problem, _ = json.loads(program.stdout.readline())
    assert answer == name
    assert not problem


def test_what_a_mutant_would_replace_must_stand_there_once() -> None:
    for mutant in ALL.values():
        assert mutant.planted()
    with pytest.raises(ValueError, match="has 0 times: nowhere"):
        Mutant("kernels/rms_norm/kernel.cu", "nowhere", "", (rms_norm,)).planted()


def test_verdicts() -> None:
    for caught in (Outcome(3, ""), Outcome(-11, ""), Outcome(-24, "")):
        assert verdict("a bug", caught) == ""
        assert verdict(NONE, caught) != ""
    assert verdict("a bug", Outcome(0, "")) == "nothing catches it"
    assert verdict("a bug", Outcome(1, "does not compile")) == "status 1: does not compile"
    assert verdict(NONE, Outcome(0, "")) == ""
