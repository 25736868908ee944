"""What a chaos run runs on: nats-server, the proxy before it, and a node of `tokenbus up` that connects through it."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from deploy.node.http_get import http_get
from tests.chaos.go_heap import ProfiledNatsServer
from tests.nodes import RunningNode
from tests.waiting import LIMIT_S

NATS_SERVER = "nats-server"
SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")
PROBE_TIMEOUT_S = 0.5


class ProxyProcess:
    """The proxy in a process of its own, so that it passes bytes on whatever this one is busy with."""

    def __init__(self, server_port: int) -> None:
        command = [sys.executable, "-m", "tests.chaos.proxy", str(server_port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.pid = self._process.pid

    def send(self, edge: str, do: str, **values: float) -> None:
        """A command of tests.chaos.proxy. Raises BrokenPipeError if the proxy is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"edge": edge, "do": do, **values}).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Stack:
    """A running node whose processes can be hit one by one, by their names on the node (`worker-0`, `nats-server`)."""

    def __init__(self, server: ProfiledNatsServer, proxy: ProxyProcess, node: RunningNode) -> None:
        self.server = server
        self._server_pid: int | None = server.pid
        self.proxy = proxy
        self.node = node

    @property
    def nats_url(self) -> str:
        """nats-server itself, past the proxy."""
        return self.server.url

    def names(self, service: str) -> list[str]:
        """The processes of a service, running or not."""
        if service == NATS_SERVER:
            return [NATS_SERVER]
        return sorted(path.stem for path in (self.node.folder.root / "config").glob(f"{service}-*.toml"))

    def all_names(self) -> list[str]:
        """Every process, nats-server last."""
        return [name for service in SERVICES for name in self.names(service)] + [NATS_SERVER]

    def pid(self, name: str) -> int | None:
        """Its process id, None between a death and the next start."""
        if name == NATS_SERVER:
            return self._server_pid
        try:
            return int(self.node.folder.pid_file(name).read_text())
        except (OSError, ValueError):
            return None

    def pids(self) -> dict[str, int]:
        """All process ids."""
        return {name: pid for name in self.all_names() if (pid := self.pid(name)) is not None}

    def gateways(self) -> list[int]:
        """Ports of the HTTP API: the one that all gateways share, then those of one gateway each."""
        return sorted(int(self._config(name)["port"]) for name in self.names("gateway"))

    def health_port(self, name: str) -> int:
        """Port of its health listener."""
        return int(self._config(name)["health_port"])

    def _config(self, name: str) -> dict[str, Any]:
        with self.node.folder.config(f"{name}.toml").open("rb") as file:
            return tomllib.load(file)

    def edge(self, name: str) -> str:
        """The name of its connection at the proxy."""
        return f"{name.rpartition('-')[0]}-{self.pid(name)}"

    def signal(self, name: str, number: int) -> bool:
        """Send a signal; False if the process is not there."""
        pid = self.pid(name)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    async def restart_server(self, how: str) -> None:
        """nats-server dies of SIGKILL ("kill") or SIGTERM ("term") and is started again at once, as by a supervisor."""
        self._server_pid = None
        if how == "kill":
            await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.restart)
        self._server_pid = self.server.pid

    async def get(self, name: str, path: str, timeout_s: float = PROBE_TIMEOUT_S) -> tuple[int, str]:
        """Status and body of a GET on its health listener; status 0 if there was no answer in time."""
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await http_get(self.health_port(name), path)
                return status, body.decode(errors="replace")
        except (OSError, TimeoutError, ValueError, KeyError):
            return 0, ""

    async def is_ready(self, name: str) -> bool:
        """Whether the process says that it can do its work."""
        if name == NATS_SERVER:
            return True  # restart_server returns once it is
        return self.pid(name) is not None and (await self.get(name, "/ready"))[0] == 200

    async def leader(self) -> str:
        """The scheduler that leads, "" when none says so."""
        for name in self.names("scheduler"):
            _, text = await self.get(name, "/metrics")
            if re.search(r"^tokenbus_scheduler_leading 1", text, re.MULTILINE):
                return name
        return ""


@contextlib.asynccontextmanager
async def running_stack(folder: Path, *options: str) -> AsyncIterator[Stack]:
    """A node with these options of `tokenbus up`, ready; all of it is stopped when the context ends.

    Raises AssertionError when the node does not start, or does not end with status 0.
    """
    (folder / "server").mkdir(parents=True)
    with ProfiledNatsServer(folder / "server") as server:
        proxy = ProxyProcess(server.port)
        try:
            node = RunningNode(folder / "node", "--nats", f"nats://127.0.0.1:{proxy.port}", *options)
            await asyncio.to_thread(node.__enter__)
            node.nats = server.url  # what reads the log for us does so past the proxy
            try:
                yield Stack(server, proxy, node)
            except BaseException as error:
                await asyncio.to_thread(node.__exit__, type(error), error, error.__traceback__)
                raise
            await asyncio.to_thread(node.__exit__, None, None, None)
        finally:
            proxy.close()
