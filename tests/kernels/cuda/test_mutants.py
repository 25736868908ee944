"""Bugs planted in kernels: each is caught by the operation's own checks, which pass without it."""

import sys
from collections.abc import Iterator

import pytest

from tests.kernels.cuda import mutants
from tests.kernels.cuda.mutant import Mutant
from tests.kernels.cuda.mutants import ALL, GOOD, is_long_run, verdict
from tests.kernels.cuda.small_checks import rms_norm
from tests.kernels.emulator.forked import Outcome
from tests.kernels.emulator.program import Program

NAMES = [pytest.param(name, marks=pytest.mark.full) if is_long_run(name) else name for name in (*GOOD, *ALL)]


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """It tries the mutants that it is named: for all of them the emulator is compiled once."""
    with Program([sys.executable, "-m", mutants.__name__]) as entered:
        yield entered


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_is_caught_and_nothing_else(program: Program, name: str) -> None:
    answer, problem, _ = program.ask(name)
    assert answer == name
    assert not problem


def test_what_a_mutant_would_replace_must_stand_there_once() -> None:
    for mutant in ALL.values():
        assert mutant.planted()
    with pytest.raises(ValueError, match="has 0 times: nowhere"):
        Mutant("kernels/rms_norm/kernel.cu", "nowhere", "", (rms_norm,)).planted()


def test_verdicts() -> None:
    good = next(iter(GOOD))
    for caught in (Outcome(3, ""), Outcome(-11, ""), Outcome(-24, "")):
        assert verdict("a bug", caught) == ""
        assert verdict(good, caught) != ""
    assert verdict("a bug", Outcome(0, "")) == "nothing catches it"
    assert verdict("a bug", Outcome(1, "does not compile")) == "status 1: does not compile"
    assert verdict(good, Outcome(0, "")) == ""
