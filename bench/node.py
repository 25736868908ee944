"""A node for one measurement: `tokenbus up` with its own data folder and port."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from bench.errors import BenchError
from deploy.node.nats_server import free_port

READY_LIMIT_S = 120.0


class NodeError(BenchError):
    """The node did not come up; the message has its last words."""


class Node:
    """Runs while the context lasts. url: of the gateway; model: name of the first one it serves.

    Its data folder goes with it, unless an exception ends the context: then its logs say why.
    """

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_dir = Path(tempfile.mkdtemp(prefix="tokenbus-bench-"))
        self.command = [
            *(sys.executable, "-m", "deploy.cli", "up"),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.data_dir),
            *options,
        ]
        self.model = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Node":
        with (self.data_dir / "node.log").open("wb") as log:
            self._process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_ready()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self.model = json.loads(self._get("/v1/models"))["data"][0]["id"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if error is None or isinstance(error, KeyboardInterrupt):
            shutil.rmtree(self.data_dir)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return bytes(answer.read())

    def _wait_ready(self) -> None:
        end = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < end:
            assert self._process is not None
            if self._process.poll() is not None:
                raise NodeError(f"the node ended: {self._last_words()}")
            try:
                self._get("/ready")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise NodeError(f"the node was not ready after {READY_LIMIT_S:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        return " | ".join((self.data_dir / "node.log").read_text(errors="replace").strip().splitlines()[-3:])

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
