"""Processes that a node of the tests supervises, and a reporter that remembers.

python -m tests.deploy.dummies FOLDER   runs a node of sleepers until it is killed
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.node.folder import DataFolder
from deploy.node.node import Node
from deploy.node.processes import Start
from tests.waiting import LIMIT_S

SLEEP = "import time\nprint('hello', flush=True)\nopen({ready!r}, 'w').close()\nwhile True: time.sleep(60)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
GRACEFUL = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + SLEEP
# A drain without end; a second signal ends it.
DRAINING = """
import signal, sys
num_signals = 0
def on_signal(*_):
    global num_signals
    num_signals += 1
    print("draining" if num_signals == 1 else "hurrying", flush=True)
    if num_signals == 2:
        sys.exit(0)
signal.signal(signal.SIGTERM, on_signal)
""" + SLEEP.replace("time.sleep(60)", "time.sleep(0.05)")
BAD_OPTION = "import sys\nprint('max-model-len 9000 needs 5 blocks, there are 3')\nsys.exit(2)"
CRASH = "raise SystemExit('boom')"


class Dummy:
    """A NodeProcess that runs a script; each start is ready once the script has made that start's file."""

    drain_s = 30.0

    def __init__(self, folder: Path, name: str, role: str, script: str = GRACEFUL) -> None:
        self.name = name
        self.role = role
        self.num_starts = 0
        self.script = script
        self.leads = False
        self.state = ""
        self.probes: list[DummyProbe] = []
        self._folder = folder

    def prepare(self) -> Start:
        self.num_starts += 1
        probe = DummyProbe(self, self._folder / f"{self.name}.{self.num_starts}.ready")
        self.probes.append(probe)
        return Start([sys.executable, "-c", self.script.format(ready=str(probe.file)), self.name], probe)


class DummyProbe:
    """Asks one start."""

    def __init__(self, dummy: Dummy, file: Path) -> None:
        self.file = file
        self._dummy = dummy

    async def is_ready(self) -> bool:
        return self.file.exists()

    async def is_leading(self) -> bool:
        return self._dummy.leads

    async def state(self) -> str:
        return self._dummy.state


class Record:
    """A Reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.deaths: list[tuple[str, int, float]] = []
        self.failed_starts: list[tuple[str, str, float]] = []
        self.stopped: list[str] = []
        self.waiting: list[dict[str, str]] = []

    def on_waiting(self, ready: Sequence[str], waiting: Mapping[str, str]) -> None:
        self.waiting.append(dict(waiting))

    def on_death(self, process: str, status: int, delay_s: float) -> None:
        self.deaths.append((process, status, delay_s))

    def on_start_failed(self, process: str, reason: str, delay_s: float) -> None:
        self.failed_starts.append((process, reason, delay_s))

    def on_stopping(self, role: str) -> None:
        self.stopped.append(role)


async def run_for_ever(root: Path) -> None:
    """A node of two sleepers; prints their process ids once they are ready."""
    task = asyncio.current_task()
    assert task is not None
    # A shell has what it runs in the background ignore SIGINT, and then so does Python, by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    folder = DataFolder(root)
    folder.open()
    processes = [Dummy(root, "worker-0", "worker", STUBBORN), Dummy(root, "gateway-0", "gateway")]
    async with Node(processes, folder, Record(), 0.2) as node:
        await node.wait_ready(LIMIT_S)
        sys.stdout.write(" ".join(str(pid) for pid in node.pids.values()) + f" {os.getpid()}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_for_ever(Path(sys.argv[1])))
