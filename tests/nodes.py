"""`tokenbus up` as a user runs it, for tests that need the whole node."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from deploy.nats.identities import Identities
from deploy.node.folder import DataFolder
from shared.bus.credentials import Credentials, read_credentials
from shared.config import NatsIdentity
from tests.waiting import LIMIT_S


class RunningNode:
    """A node while the context lasts. url: of its first gateway, without /v1; nats: URL of its NATS server. identities:
    of the server at --nats where --nats-credentials names them; those of a node with --secure are in its data folder.

    Its end is checked: exit status 0.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = DataFolder(folder)
        self.output = folder.with_suffix(".out")
        self.url = ""
        self.nats = ""
        self.process: subprocess.Popen[bytes] | None = None
        given = dict(pairwise(options)).get("--nats-credentials")
        self.identities = Identities(Path(given)) if given is not None else None
        self._command = [
            sys.executable,
            "-m",
            "deploy.cli.main",
            "up",
            "--data-dir",
            str(folder),
            "--port",
            "0",
            *options,
        ]

    def __enter__(self) -> "RunningNode":
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            self._wait_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        path = self.folder.root / "http.url"
        while not path.exists():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"not ready: {self.output.read_text()}")
            time.sleep(0.05)
        self.url = path.read_text().strip()
        self.nats = (self.folder.root / "nats.url").read_text().strip()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if kind is None:
            assert status == 0, self.output.read_text()

    def pids(self, service: str = "") -> dict[str, int]:
        """Process ids by process name (`worker-0`), of one service or of all."""
        files = (self.folder.root / "pids").glob("*.pid")
        found = {file.stem: file for file in files if file.stem.startswith(service)}
        return {name: int(text) for name, file in found.items() if (text := _read(file))}

    def signal(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a process by its name; returns its process id."""
        pid = self.pids()[name]
        os.kill(pid, number)
        return pid

    def log(self, name: str) -> str:
        """What a process has logged."""
        return self.folder.log(name).read_text()

    def credentials(self, role: str) -> Credentials:
        """How a connection of this role signs in; blocks."""
        identities = self.identities or Identities(self.folder.credentials)
        return read_credentials(NatsIdentity(**identities.options(role)))

    def verify(self) -> dict[str, Any]:
        """`tokenbus log verify --json`."""
        command = [
            sys.executable,
            "-m",
            "deploy.cli.main",
            "log",
            "verify",
            "--data-dir",
            str(self.folder.root),
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report: dict[str, Any] = json.loads(done.stdout)
        return report


def _read(file: Path) -> str:
    """Its text, empty if the process has just ended."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def wrongs(report: dict[str, Any]) -> dict[str, int]:
    """What a report of log verify finds wrong; empty for a clean log."""
    return {name: report[name] for name in ("lost", "duplicated", "foreign", "prefix_mismatched") if report[name]}
