"""A real nats-server for one test: ephemeral port, JetStream store in a folder of the test, readiness, a sure end."""

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from deploy.node.nats_server import NatsServerOptions, command, free_port, wait_ready, write_config
from tests.waiting import LIMIT_S

NUM_PORT_TRIES = 5
PROBE_S = 0.2  # then whether the process still lives is looked at


class NatsServer:
    """Runs while the context lasts. `restart()` after `kill()` or `stop()` keeps port and store, as a crash would.

    url: for clients. All methods block, for some 50 ms each; in a test with a busy event loop call them in a thread.
    """

    def __init__(self, folder: Path, **options: object) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.options = self._make_options()

    @property
    def url(self) -> str:
        return self.options.url

    @property
    def port(self) -> int:
        return self.options.port

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it is ready; another port if somebody took the first one in between."""
        for _ in range(NUM_PORT_TRIES):
            if self._try_start():
                return
            self.options = self._make_options()
        raise RuntimeError(f"nats-server did not start: {self.log()[-2000:]}")

    def restart(self) -> None:
        """Start again on the same port and store; ends the running one first."""
        self.stop()
        if not self._try_start():
            raise RuntimeError(f"nats-server did not start again: {self.log()[-2000:]}")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it does not go."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP, and wait until it takes effect: until then the server may still answer."""
        os.kill(self.pid, signal.SIGSTOP)
        process = psutil.Process(self.pid)
        deadline = time.monotonic() + LIMIT_S
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, "the server does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT after pause()."""
        os.kill(self.pid, signal.SIGCONT)

    def reload(self) -> None:
        """Have the running server read its options again."""
        self.write_config(self._folder / "nats.conf")
        os.kill(self.pid, signal.SIGHUP)

    def write_config(self, path: Path) -> None:
        """Called before each start."""
        write_config(path, self.options)

    def log(self) -> str:
        """What the server has logged so far."""
        return (self._folder / "nats.log").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make_options(self) -> NatsServerOptions:
        fixed = {"store_dir": self._folder / "store", "port": free_port(), "server_name": "test"}
        return msgspec.convert({**fixed, **self._options}, NatsServerOptions)

    def _try_start(self) -> bool:
        config = self._folder / "nats.conf"
        self.write_config(config)
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command(config), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + LIMIT_S
        is_up = False
        while not is_up and self._process.poll() is None and time.monotonic() < deadline:
            is_up = wait_ready(self.options.host, self.options.port, PROBE_S)
        if is_up and self._process.poll() is None:  # else somebody else's server may have answered
            return True
        self.kill()
        return False
