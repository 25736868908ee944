"""A node: nats-server and all services as processes of one machine, kept running, stopped in order.

async with Node(keepers, folder, reporter) as node:
    await node.wait_ready(timeout_s)
    ...
# here everything is stopped; node.is_clean tells whether all went by themselves
"""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from deploy.node.config import DRAIN_ORDER, NodeConfig, service_values
from deploy.node.folder import DataFolder
from deploy.node.keeper import Keeper
from deploy.node.nats_server import NatsServerOptions, free_port
from deploy.node.processes import NatsServerProcess, NodeProcess, ServiceProcess

NATS_SERVER = "nats-server"
POLL_S = 0.1
MAX_DEATHS_BEFORE_READY = 3
HOPELESS = (2, 127)  # a configuration that cannot work; a command that cannot be run
NUM_LAST_WORDS = 12


class StartFailed(RuntimeError):
    """A process that does not come up; the message holds the end of its log."""


class Reporter(Protocol):
    """Told what happens, for people who watch."""

    def on_waiting(self, ready: Sequence[str], waiting: Sequence[str]) -> None:
        """While starting, whenever a process became ready."""

    def on_death(self, process: str, status: int, delay_s: float) -> None:
        """A process died and is started again after delay_s."""

    def on_stopping(self, role: str) -> None:
        """The processes of this service are being stopped."""


class Node:
    """Runs the processes while the context lasts. stop_limit_s: seconds for all of them together to stop."""

    def __init__(
        self, processes: Sequence[NodeProcess], folder: DataFolder, reporter: Reporter, stop_limit_s: float
    ) -> None:
        self.is_clean = True
        self._folder = folder
        self._reporter = reporter
        self._stop_limit_s = stop_limit_s
        self._keepers = [Keeper(process, folder, self._on_death) for process in processes]
        self._group = asyncio.TaskGroup()
        self._hurry = asyncio.Event()

    async def __aenter__(self) -> "Node":
        await self._group.__aenter__()
        for keeper in self._keepers:
            self._group.create_task(keeper.run(), name=keeper.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.shield(asyncio.ensure_future(self._stop()))
        finally:
            if isinstance(error, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, trace)
            else:  # the tasks have ended; an error of the body leaves as it is, not in a group
                await self._group.__aexit__(None, None, None)

    @property
    def pids(self) -> dict[str, int | None]:
        """The process ids now, by process name."""
        return {keeper.name: keeper.pid for keeper in self._keepers}

    def hurry(self) -> None:
        """End a drain that is under way at once."""
        self._hurry.set()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when every process is ready. Raises StartFailed when one cannot, or not in time."""
        deadline = time.monotonic() + timeout_s
        waiting = list(self._keepers)
        while True:
            answers = await asyncio.gather(*(keeper.process.is_ready() for keeper in waiting))
            still = [keeper for keeper, ready in zip(waiting, answers, strict=True) if not ready]
            if len(still) < len(waiting) or not still:
                names = [keeper.name for keeper in still]
                self._reporter.on_waiting([each.name for each in self._keepers if each.name not in names], names)
            waiting = still
            if not waiting:
                return
            for keeper in waiting:
                if keeper.status in HOPELESS or keeper.num_deaths >= MAX_DEATHS_BEFORE_READY:
                    raise StartFailed(self._obituary(keeper, f"ended with status {keeper.status}"))
            if time.monotonic() > deadline:
                raise StartFailed(self._obituary(waiting[0], f"not ready within {timeout_s:g} s"))
            await asyncio.sleep(POLL_S)

    def _obituary(self, keeper: Keeper, what: str) -> str:
        words = self._folder.last_words(keeper.name, NUM_LAST_WORDS)
        return f"{keeper.name} {what}. The end of {self._folder.log(keeper.name)}:\n{words}"

    def _on_death(self, keeper: Keeper, delay_s: float) -> None:
        self._reporter.on_death(keeper.name, keeper.status or 0, delay_s)

    async def _stop(self) -> None:
        """Stop role after role in drain order, nats-server last, all within stop_limit_s; kill what is left then."""
        deadline = time.monotonic() + self._stop_limit_s
        for role in (*DRAIN_ORDER, NATS_SERVER):
            keepers = [keeper for keeper in self._keepers if keeper.process.role == role]
            if not keepers:
                continue
            self._reporter.on_stopping(role)
            left = 0.0 if self._hurry.is_set() else max(0.0, deadline - time.monotonic())
            stopped = asyncio.gather(*(keeper.stop(left) for keeper in keepers))
            hurry = asyncio.ensure_future(self._hurry.wait())
            both: list[asyncio.Future[Any]] = [stopped, hurry]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if not stopped.done():
                for keeper in keepers:
                    keeper.kill()
            self.is_clean &= all(await stopped)


def make_processes(config: NodeConfig, given: dict[str, Any], folder: DataFolder) -> tuple[list[NodeProcess], str]:
    """The processes of a node and the URL of its NATS server.

    given: the options that the user gave, for the services that know them. Raises ConfigError, OSError.
    """
    processes: list[NodeProcess] = []
    nats_url = config.nats
    if not nats_url:
        options = NatsServerOptions(store_dir=folder.store, port=free_port(), sync_interval=config.nats_sync_interval)
        processes.append(NatsServerProcess(folder, options))
        nats_url = options.url
    for service in DRAIN_ORDER:
        values = service_values(service, config, given)
        values |= {"nats": nats_url, "drain_timeout_s": config.drain_timeout_s}
        for index in range(config.count(service)):
            if service == "gateway":
                values = {**values, "port": config.port + index}
            processes.append(ServiceProcess(folder, service, index, values))
    return processes, nats_url
