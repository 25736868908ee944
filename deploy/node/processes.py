"""The two kinds of process on a node: nats-server and a service of ours. What to run, and whether it is ready."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from deploy.node.config import to_toml
from deploy.node.folder import DataFolder
from deploy.node.http_get import LOOPBACK, http_get
from deploy.node.nats_server import (
    TIMER_SLACK_NS,
    NatsServerOptions,
    command,
    environment,
    free_port,
    is_ready,
    write_config,
)

PROBE_TIMEOUT_S = 2.0
NATS_SERVER = "nats-server"
NATS_SERVER_STOP_S = 10.0


class Probe(Protocol):
    """Asks one start of a process, also while another start of the same process is alive."""

    async def is_ready(self) -> bool:
        """Whether it can do its work now."""

    async def is_leading(self) -> bool:
        """Whether its fellows stand by for it."""

    async def state(self) -> str:
        """What it is at, for people who wait until it is ready; empty where it does not say."""


class Start(msgspec.Struct, frozen=True):
    """One start: what to run, whom to ask, the file descriptors that it inherits, what it finds in its environment
    beside what the node itself has there, and how much too late its sleeps may end (0: as the system has it)."""

    command: Sequence[str]
    probe: Probe
    fds: Sequence[int] = ()
    environment: Mapping[str, str] = {}
    timer_slack_ns: int = 0


class NodeProcess(Protocol):
    """One process that a node keeps running. drain_s: how long it may take to finish what it does."""

    drain_s: float

    @property
    def name(self) -> str:
        """Unique on the node, e.g. worker-0."""

    @property
    def role(self) -> str:
        """Its service, e.g. worker."""

    def prepare(self) -> Start:
        """Called before each start: writes the configuration."""


class NatsServerProcess:
    """The node's own nats-server; port and store stay the same over restarts."""

    name = NATS_SERVER
    role = NATS_SERVER
    drain_s = NATS_SERVER_STOP_S

    def __init__(self, folder: DataFolder, options: NatsServerOptions) -> None:
        self.options = options
        self._config = folder.config("nats-server.conf")

    def prepare(self) -> Start:
        write_config(self._config, self.options)
        return Start(
            command(self._config),
            self,
            environment=environment(os.cpu_count() or 1),
            timer_slack_ns=TIMER_SLACK_NS,
        )

    async def is_ready(self) -> bool:
        return await asyncio.to_thread(is_ready, self.options.host, self.options.port, PROBE_TIMEOUT_S)

    async def is_leading(self) -> bool:
        return False

    async def state(self) -> str:
        return ""


class ServiceProcess:
    """One instance of a service, configured by a TOML file, asked on its health port.

    fds: called before each start for the descriptors of its listening sockets. environment: see Start.
    """

    def __init__(
        self,
        folder: DataFolder,
        role: str,
        index: int,
        values: dict[str, Any],
        fds: Callable[[], Sequence[int]] = tuple,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.role = role
        self.name = f"{role}-{index}"
        self.drain_s: float = values["drain_timeout_s"]
        self._values = {**values, "name": self.name, "health_host": LOOPBACK}
        self._config = folder.config(f"{self.name}.toml")
        self._health_port = free_port()
        self._fds = fds
        self._environment = environment or {}

    def prepare(self) -> Start:
        """The health port stays the same over restarts unless somebody has it: often the start before, still alive."""
        self._health_port = free_port(preferred=self._health_port)
        values = {**self._values, "health_port": self._health_port}
        fds = self._fds()
        if fds:
            values["listen_fd"] = list(fds)
        self._config.write_text(to_toml(values), encoding="utf-8")
        command = [sys.executable, "-m", f"services.{self.role}", "--config", str(self._config)]
        return Start(command, HealthProbe(self._health_port), fds, self._environment)


class HealthProbe:
    """Asks a service on its health port (shared/health.py)."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def is_ready(self) -> bool:
        return (await self._get("/ready"))[0] == 200

    async def is_leading(self) -> bool:
        return (await self._detail("role")) == "leader"

    async def state(self) -> str:
        state = await self._detail("state")
        return state if isinstance(state, str) and state != "starting" else ""  # which all say, and which says nothing

    async def _detail(self, name: str) -> object:
        """Of /health; None where it is not there."""
        _, body = await self._get("/health")
        try:
            health = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return None
        return health.get(name) if isinstance(health, dict) else None

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 when there is no answer."""
        try:
            return await asyncio.wait_for(http_get(self._port, path), PROBE_TIMEOUT_S)
        except (OSError, TimeoutError, ValueError):
            return 0, b""
