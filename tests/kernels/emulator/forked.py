"""Work that may end its process: done in a fork of it."""

import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. status: the exit status, or minus the signal; text: what it wrote, a traceback if it raised."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        """It came to its end."""
        return self.status == 0

    def __str__(self) -> str:
        ending = f"signal {signal.Signals(-self.status).name}" if self.status < 0 else f"status {self.status}"
        return f"{ending}: {self.text}"


def fork(work: Callable[[], int | None], cpu_limit_s: int) -> Outcome:
    """Do it in a fork of a process that has one thread: the exit status is what it returns, or 1 if it raises.

    SIGXCPU ends it after so much of the processor's time.
    """
    with tempfile.TemporaryFile() as written:
        child = os.fork()
        if child == 0:
            os._exit(_do(work, written.fileno(), cpu_limit_s))
        _, status = os.waitpid(child, 0)
        written.seek(0)
        return Outcome(os.waitstatus_to_exitcode(status), written.read().decode(errors="replace"))


def _do(work: Callable[[], int | None], written: int, cpu_limit_s: int) -> int:
    for stream in (1, 2):
        os.dup2(written, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 1))
    try:
        return work() or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
