"""Three real nats-servers on this machine as one secured cluster, for tests that kill and stop them."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from deploy.nats.cluster import ClusterConfig, ClusterNode, prepare, urls
from deploy.nats.identities import Identities
from deploy.node.nats_server import command, free_port, wait_ready
from tests.waiting import LIMIT_S

NAMES = ("a", "b", "c")


class LocalCluster:
    """Runs while the context lasts. url: of all servers, with commas between."""

    def __init__(self, folder: Path) -> None:
        nodes = tuple(f"{name}=127.0.0.1:{free_port()}:{free_port()}" for name in NAMES)
        self.nodes = {node.name: node for node in prepare(ClusterConfig(dir=str(folder), nodes=nodes))}
        self.url = urls(list(self.nodes.values()))
        self.identities = Identities(folder / "credentials")
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "LocalCluster":
        for name in NAMES:
            self._start(name)
        for name in NAMES:
            self._wait_ready(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()

    def kill(self, name: str) -> None:
        """kill -9."""
        self._servers[name].kill()
        self._servers[name].wait()

    def restart(self, name: str) -> None:
        """Start it again on its ports and store; blocks until it greets."""
        self._start(name)
        self._wait_ready(name)

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """SIGSTOP for as long as the context lasts: its sockets stay open, and nothing comes from it."""
        os.kill(self._servers[name].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._servers[name].pid, signal.SIGCONT)

    @property
    def meta_leader(self) -> str:
        """The server that last said that it leads the cluster's metadata, "" before the first election."""
        said = [
            (match[1], name)
            for name in NAMES
            for match in re.finditer(
                r"\] (\S+ \S+) \[INF\] Self is new JetStream cluster metadata leader", self.log(name)
            )
        ]
        return max(said, default=("", ""))[1]

    def log(self, name: str) -> str:
        """What a server has logged."""
        return self._log(name).read_text(encoding="utf-8", errors="replace")

    def _log(self, name: str) -> Path:
        return self._node(name).config.with_name("nats.log")

    def _node(self, name: str) -> ClusterNode:
        return self.nodes[name]

    def _start(self, name: str) -> None:
        with self._log(name).open("ab") as log:
            self._servers[name] = subprocess.Popen(
                command(self._node(name).config), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait_ready(self, name: str) -> None:
        node = self._node(name)
        if not wait_ready(node.host, node.port, LIMIT_S):
            raise RuntimeError(f"{name} did not start: {self.log(name)[-2000:]}")
