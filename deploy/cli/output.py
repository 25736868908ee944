"""Stdout whose reader goes before all is said, as in `tokenbus ask ... | head -1`: no error, the command just ends."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

STATUS = 128 + 13
"""Of a command that ends so: what a shell shows of the many that SIGPIPE ends. Here the signal would also end a command
whose connection to a server breaks."""


class OutputClosed(Exception):
    """Nobody reads stdout any more; what is written from now on goes nowhere.

    Not the BrokenPipeError that it begins as: that is an OSError, which a command takes for a server that is gone.
    """


class Output:
    """A stdout that raises OutputClosed, once."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def write(self, text: str) -> int:
        """As of any text file."""
        with self._told():
            return self._stdout.write(text)

    def flush(self) -> None:
        """As of any text file."""
        with self._told():
            self._stdout.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stdout.fileno())  # also for what is in the buffer: it would fail at exit
            os.close(nowhere)
            raise OutputClosed from None


@contextlib.contextmanager
def told_when_closed() -> Iterator[None]:
    """Within, and at the end at the latest, OutputClosed is raised when stdout's reader has gone.

    A stdout that was closed from the start (`>&-`) swallows everything.
    """
    stdout = sys.stdout
    if stdout is None:
        stdout = open(os.devnull, "w", encoding="utf-8")  # until the process ends
    output = Output(stdout)
    sys.stdout = output
    try:
        yield
    finally:
        try:
            with contextlib.suppress(OSError):  # such as a full disk: Python itself tells that at exit
                output.flush()
        finally:
            sys.stdout = stdout
