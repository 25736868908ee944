"""Keeps one process running: starts it, starts it again when it dies, stops it when told to."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deploy.node import launch
from deploy.node.backoff import Backoff
from deploy.node.folder import DataFolder
from deploy.node.processes import NodeProcess

KILL_GRACE_S = 5.0


class Keeper:
    """One process of a node. run() is its life; stop() ends it.

    status: exit status of the last death (negative: the signal), None before. num_deaths: since the start.
    """

    def __init__(
        self, process: NodeProcess, folder: DataFolder, on_death: Callable[["Keeper", float], None] | None = None
    ) -> None:
        self.process = process
        self.status: int | None = None
        self.num_deaths = 0
        self._folder = folder
        self._on_death = on_death
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        """The process's name on the node."""
        return self.process.name

    @property
    def pid(self) -> int | None:
        """Its process id now, None between a death and the next start."""
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Start the process again and again, at once first and then with growing delays, until stop()."""
        backoff = Backoff()
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                self.status = await self._run_once()
                if self._stopping.is_set():
                    return
                self.num_deaths += 1
                delay = backoff.next_delay(time.monotonic() - started)
                if self._on_death is not None:
                    self._on_death(self, delay)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)
        finally:
            self._ended.set()

    async def stop(self, limit_s: float) -> bool:
        """SIGTERM, SIGKILL after limit_s. False if the process had to be killed or ended with an error."""
        was_running = self._child is not None
        self._stopping.set()
        self._send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._ended.wait(), limit_s)
        except TimeoutError:
            self.kill()
            await asyncio.wait_for(self._ended.wait(), KILL_GRACE_S)
            return False
        return not was_running or self.status in (0, -signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL now; it is started again unless it is being stopped."""
        self._send(signal.SIGKILL)

    async def _run_once(self) -> int:
        """One run of the process, from start to exit status."""
        command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *self.process.prepare()]
        with self._folder.log(self.name).open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        pid_file = self._folder.pid_file(self.name)
        try:
            _write_pid(pid_file, self._child.pid)
            if self._stopping.is_set():
                self._send(signal.SIGTERM)
            return await self._child.wait()
        finally:
            if self._child.returncode is None:
                self.kill()
            self._child = None
            pid_file.unlink(missing_ok=True)

    def _send(self, number: int) -> None:
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


def _write_pid(path: Path, pid: int) -> None:
    path.write_text(f"{pid}\n", encoding="utf-8")
