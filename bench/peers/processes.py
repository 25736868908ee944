"""Server processes of a peer: started together, stopped with everything they started."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.errors import BenchError

STOP_LIMIT_S = 20.0
LAST_LINES = 4


@dataclass(frozen=True, slots=True)
class Command:
    """words: the command line. env: what it needs beyond the environment of this process."""

    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As one would type it."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.words)])


class ProcessGroups:
    """Running commands, each the leader of a process group of its own, so that no grandchild outlives them."""

    def __init__(self, commands: Sequence[Command], folder: Path) -> None:
        self._commands = commands
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        try:
            for index, command in enumerate(commands):
                self._running.append(self._start(command, index))
        except OSError as error:
            self.stop()
            raise BenchError(f"{error.filename}: {error.strerror}") from None

    @property
    def pids(self) -> list[int]:
        """Of the leaders."""
        return [process.pid for process in self._running]

    def check(self) -> None:
        """Raises BenchError, with its last words, if one of them has ended."""
        for index, process in enumerate(self._running):
            if process.poll() is not None:
                raise BenchError(f"{Path(self._commands[index].words[0]).name} ended: {self.last_words(index)}")

    def last_words(self, index: int = 0) -> str:
        """The end of a command's output."""
        text = self._log(index).read_text(errors="replace").strip()
        return " | ".join(text.splitlines()[-LAST_LINES:]) or "without a word"

    def stop(self) -> None:
        """SIGTERM to every group, SIGKILL to those that are left after some seconds."""
        for process in reversed(self._running):
            _signal(process.pid, signal.SIGTERM)
        end = time.monotonic() + STOP_LIMIT_S
        for process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            _signal(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, command: Command, index: int) -> subprocess.Popen[bytes]:
        with self._log(index).open("wb") as log:
            return subprocess.Popen(
                list(command.words),
                env={**os.environ, **command.env},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, index: int) -> Path:
        return self._folder / f"{index}.log"


@contextlib.contextmanager
def running(commands: Sequence[Command], folder: Path) -> Iterator[ProcessGroups]:
    """The commands while the context lasts. folder: they run there and their output goes there. Raises BenchError."""
    groups = ProcessGroups(commands, folder)
    try:
        yield groups
    finally:
        groups.stop()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
