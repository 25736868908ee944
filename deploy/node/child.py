"""One run of a process, from its start to its exit status."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from deploy.node import launch
from deploy.node.processes import Probe, Start
from shared.stop_signals import SAME_STOP_S

SECOND_SIGNAL_AFTER_S = SAME_STOP_S + 0.2  # services take two signals at once for one wish
KILL_AFTER_S = 5.0
CLEAN = (0, -signal.SIGTERM)


class Child:
    """Make one with Child.spawn. probe: asks this run."""

    def __init__(self, process: asyncio.subprocess.Process, probe: Probe) -> None:
        self.probe = probe
        self._process = process
        self._asked_s: float | None = None

    @classmethod
    async def spawn(cls, start: Start, log: Path) -> "Child":
        """Run it in a session of its own, with its output appended to log."""
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), str(start.timer_slack_ns)]
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *launcher,
                *start.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | start.environment,
                pass_fds=start.fds,
                start_new_session=True,
            )
        return cls(process, start.probe)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        return await self._process.wait()

    async def stop(self, drain_s: float, hurry: asyncio.Event) -> bool:
        """SIGTERM; a second one after drain_s or on hurry, which ends a drain; SIGKILL if even that does not help.

        False if it had to be killed or ended with an error. Asked again while it drains, as when the node stops in the
        middle of a restart, it has drain_s from then on.
        """
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            self.send(signal.SIGTERM)
        if not await self._ends_within(drain_s, hurry):
            early_s = SECOND_SIGNAL_AFTER_S - (time.monotonic() - self._asked_s)
            if not await self._ends_within(early_s):
                self.send(signal.SIGTERM)
                if not await self._ends_within(KILL_AFTER_S):
                    self.kill()
                    await self.wait()
                    return False
        return self.status in CLEAN

    def kill(self) -> None:
        """SIGKILL."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _ends_within(self, limit_s: float, unless: asyncio.Event | None = None) -> bool:
        """Whether it has ended before the time is over, or the event comes."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.wait())]
        if unless is not None:
            waits.append(asyncio.ensure_future(unless.wait()))
        try:
            await asyncio.wait(waits, timeout=max(0.0, limit_s), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return self.status is not None
