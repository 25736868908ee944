"""Checks of kernels under the compiler's sanitizers, in a process of their own.

A check is a function of a module: it takes a LoadKernels, runs kernels that it loads, and raises if they are wrong.

- THREADS: each CUDA thread is a thread to ThreadSanitizer, which finds what a barrier should have kept apart, whatever
  the order was in that the threads took turns.
- MEMORY: UndefinedBehaviorSanitizer (alignment, bounds, shifts, overflows, null pointers), and tensors beside memory
  that nobody may touch.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import TracebackType

from kernels.cuda.module import LoadKernels
from tests.kernels.emulator.forked import fork
from tests.kernels.emulator.guarded import load_guarded
from tests.kernels.emulator.module import SCHEDULES, load_emulated
from tests.kernels.emulator.program import Program

Check = Callable[[LoadKernels], None]

THREADS, MEMORY = "threads", "memory"
CPU_LIMIT_S = 300  # of one check; for one that never ends
FLAGS = {
    THREADS: ("-O1", "-g", "-fsanitize=thread"),
    MEMORY: (
        "-O1",
        "-g",
        "-fsanitize=alignment,bounds,shift,signed-integer-overflow,null",
        "-fno-sanitize-recover=all",
        "-static-libubsan",
    ),
}
_THREADS_OPTIONS = "exitcode=66 halt_on_error=1 report_signal_unsafe=0 history_size=4"


class Sanitizer:
    """A process for checks while it is entered. kind: THREADS or MEMORY."""

    def __init__(self, kind: str) -> None:
        self._program = Program([*_prefix(kind), sys.executable, "-m", __name__, kind], _environment(kind))

    def __enter__(self) -> "Sanitizer":
        self._program.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.__exit__(kind, error, trace)

    def finding(self, check: Check) -> str:
        """What went wrong; an empty text if nothing did."""
        return str(self._program.ask(f"{check.__module__}:{check.__qualname__}"))


def _environment(sanitizer: str) -> dict[str, str]:
    # torch's threads would not survive a fork, and are none of a kernel's
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if sanitizer == THREADS:
        library = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
        environment |= {"LD_PRELOAD": library.stdout.strip(), "TSAN_OPTIONS": _THREADS_OPTIONS}
    return environment


def _prefix(sanitizer: str) -> list[str]:
    """ThreadSanitizer's own memory lies at fixed addresses, where a randomized layout may have put something else."""
    return ["setarch", "-R"] if sanitizer == THREADS and _can_fix_addresses() else []


@cache
def _can_fix_addresses() -> bool:
    return subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0  # a container may forbid it


def _loads(sanitizer: str) -> Iterator[LoadKernels]:
    for schedule in SCHEDULES:
        load = load_emulated(schedule, FLAGS[sanitizer])
        if sanitizer == THREADS:
            yield load
        else:
            yield from (load_guarded(load, is_at_end) for is_at_end in (True, False))


def main(sanitizer: str) -> None:
    """For each check that standard input names, write what went wrong as a line of JSON."""
    for line in sys.stdin:
        module, _, function = line.strip().partition(":")
        check: Check = getattr(importlib.import_module(module), function)

        def run(check: Check = check) -> None:
            for load in _loads(sanitizer):
                check(load)

        outcome = fork(run, CPU_LIMIT_S)
        sys.stdout.write(json.dumps("" if outcome.is_good else str(outcome)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
