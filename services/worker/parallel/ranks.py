"""The other ranks as child processes of rank 0. Each ends with it: its orders come through a pipe that ends then."""

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

import structlog

from services.worker.engine.isolation import EngineBroken
from services.worker.native_threads import end_at_once
from services.worker.parallel.orders import Join, Order, to_bytes

_RANK_COMMAND = (sys.executable, "-m", "services.worker.rank")
_CANNOT_START = 2
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLOSE_S = 5.0
_DEATH_S = 5.0  # until a process that has closed its connections has ended

# Called with a rank and its exit status, negative for a signal, in a thread of its own.
OnDeath = Callable[[int, int], None]


def end_process(rank: int, status: int) -> NoReturn:
    """Ends this process, which cannot go on without that rank, at once: a step may wait for it for ever.

    Status 2 if the rank could not start, and would not the next time either; else 1, and the worker is started again.
    """
    try:
        structlog.get_logger().error(
            "a rank of this worker has ended, and so does the worker", rank=rank, status=status
        )
    finally:
        end_at_once(_CANNOT_START if status == _CANNOT_START else 1)


class Ranks:
    """Ranks 1 and up. pids: by rank, from 1."""

    def __init__(self, joins: Sequence[Join], on_death: OnDeath) -> None:
        """Starts a process for each; on_death is called for each that ends before close."""
        self._on_death = on_death
        self._death = threading.Event()
        self._is_closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        for join in joins:
            process = _start_rank()
            self._processes.append(process)
            threading.Thread(target=self._watch, args=(join, process), name="rank", daemon=True).start()
        for process, join in zip(self._processes, joins, strict=True):
            _write(_pipe(process), to_bytes(join))
        self.pids = {join.rank: process.pid for join, process in zip(joins, self._processes, strict=True)}

    def tell(self, order: Order) -> None:
        """Hand an order to each. Raises EngineBroken if one has gone."""
        data = to_bytes(order)
        for process in self._processes:
            _write(_pipe(process), data)

    def wait_for_death(self) -> None:
        """After their connections broke: until on_death was told of one that has ended, most likely the reason, or a
        while without. Its line comes before any other end of this process."""
        self._death.wait(_DEATH_S)

    def close(self) -> None:
        """End them; returns once they have."""
        self._is_closing = True
        for process in self._processes:
            try:
                _pipe(process).close()
            except OSError:
                pass  # it has gone, and what was written for it with it
        for process in self._processes:
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, join: Join, process: "subprocess.Popen[bytes]") -> None:
        status = process.wait()
        if not self._is_closing:
            shutil.rmtree(join.folder, ignore_errors=True)  # on_death may end this process
            self._on_death(join.rank, status)
            self._death.set()


def _start_rank() -> "subprocess.Popen[bytes]":
    """In a session of its own: Ctrl-C is for rank 0 alone, which drains first. So is what ends all processes of a unit
    at once, which a rank is deaf to from its first moment: it inherits that, long before it can say so itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        return subprocess.Popen(_RANK_COMMAND, stdin=subprocess.PIPE, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pipe(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _write(pipe: IO[bytes], data: bytes) -> None:
    try:
        pipe.write(data)
        pipe.flush()
    except OSError as error:
        raise EngineBroken(f"a rank of this worker has gone: {error}") from error
