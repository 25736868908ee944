"""All planted bugs. An operation adds its own: a module with MUTANTS, and a line in ALL.

As a program it tries those that standard input names, all of them at a terminal, and says how each was caught.
"""

import json
import signal
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.kernels.cuda import (
    attention_mutants,
    quant_mutants,
    sampling_draw_mutants,
    sampling_mutants,
    small_mutants,
)
from tests.kernels.cuda.mutant import FLAGS, Mutant, run
from tests.kernels.emulator.build import precompile
from tests.kernels.emulator.forked import Outcome, fork
from tests.kernels.emulator.sanitized import Check

ALL: dict[str, Mutant] = {
    **small_mutants.MUTANTS,
    **attention_mutants.MUTANTS,
    **quant_mutants.MUTANTS,
    **sampling_mutants.MUTANTS,
    **sampling_draw_mutants.MUTANTS,
}

# What must pass: each check of any bug, where there is none.
GOOD: dict[str, Check] = {
    f"no bug: {check.__module__.rpartition('.')[2]}.{check.__name__}": check
    for mutant in ALL.values()
    for check in mutant.checks
}
CAUGHT = 3  # the exit status where a check failed; a crash catches a bug as well
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGXCPU)
CPU_LIMIT_S = 60  # a bug may be that a kernel never ends


def try_out(name: str, folder: Path) -> int:
    """The exit status. name: of ALL or GOOD."""
    caught = run([GOOD[name]], folder, None) if name in GOOD else run(ALL[name].checks, folder, ALL[name])
    sys.stdout.write(caught)
    return CAUGHT if caught else 0


def is_long_run(name: str) -> bool:
    """A check is tried in every run if a bug is that needs it."""
    if name in ALL:
        return ALL[name].is_long_run
    return all(mutant.is_long_run for mutant in ALL.values() if GOOD[name] in mutant.checks)


def verdict(name: str, outcome: Outcome) -> str:
    """What is wrong with a mutant; nothing if it was caught, and if there was none to catch."""
    if name in GOOD:
        return "" if outcome.is_good else str(outcome)
    if outcome.status == CAUGHT or -outcome.status in CRASHES:
        return ""
    return "nothing catches it" if outcome.is_good else str(outcome)


def main(names: Iterable[str]) -> None:
    """Write each one's name, verdict and outcome as a line of JSON as soon as it is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        precompile(Path(folder), FLAGS)
        for name in names:
            outcome = fork(partial(try_out, name, Path(folder)), CPU_LIMIT_S)
            sys.stdout.write(json.dumps([name, verdict(name, outcome), str(outcome)]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main([*GOOD, *ALL] if sys.stdin.isatty() else map(str.strip, sys.stdin))
