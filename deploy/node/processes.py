"""The two kinds of process on a node: nats-server and a service of ours. What to run, and whether it is ready."""

import asyncio
import sys
from typing import Any, Protocol

from deploy.node.config import to_toml
from deploy.node.folder import DataFolder
from deploy.node.nats_server import NatsServerOptions, command, free_port, is_ready, write_config

PROBE_TIMEOUT_S = 2.0
LOOPBACK = "127.0.0.1"


class NodeProcess(Protocol):
    """One process that a node keeps running."""

    @property
    def name(self) -> str:
        """Unique on the node, e.g. worker-0."""

    @property
    def role(self) -> str:
        """Its service, e.g. worker."""

    def prepare(self) -> list[str]:
        """Called before each start: writes the configuration, gives the command line."""

    async def is_ready(self) -> bool:
        """Whether it can do its work now."""


class NatsServerProcess:
    """The node's own nats-server; port and store stay the same over restarts."""

    name = "nats-server"
    role = "nats-server"

    def __init__(self, folder: DataFolder, options: NatsServerOptions) -> None:
        self.options = options
        self._config = folder.config("nats-server.conf")

    def prepare(self) -> list[str]:
        write_config(self._config, self.options)
        return command(self._config)

    async def is_ready(self) -> bool:
        return await asyncio.to_thread(is_ready, self.options.host, self.options.port, PROBE_TIMEOUT_S)


class ServiceProcess:
    """One instance of a service, configured by a TOML file, asked on its health port."""

    def __init__(self, folder: DataFolder, role: str, index: int, values: dict[str, Any]) -> None:
        self.role = role
        self.name = f"{role}-{index}"
        self._values = {**values, "name": self.name, "health_host": LOOPBACK}
        self._config = folder.config(f"{self.name}.toml")
        self.health_port = free_port()

    def prepare(self) -> list[str]:
        """The health port stays the same over restarts unless somebody took it."""
        self.health_port = free_port(preferred=self.health_port)
        self._config.write_text(to_toml({**self._values, "health_port": self.health_port}), encoding="utf-8")
        return [sys.executable, "-m", f"services.{self.role}", "--config", str(self._config)]

    async def is_ready(self) -> bool:
        try:
            return await asyncio.wait_for(_get_status(self.health_port, "/ready"), PROBE_TIMEOUT_S) == 200
        except (OSError, TimeoutError, ValueError):
            return False


async def _get_status(port: int, path: str) -> int:
    """The status of a GET on the loopback. OSError when nobody listens, ValueError when it is no HTTP."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        fields = line.split()
        if len(fields) < 2:
            raise ValueError("no status line")
        return int(fields[1])
    finally:
        writer.close()
