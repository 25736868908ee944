"""A node: nats-server and all services as processes of one machine, kept running, stopped in order.

async with Node(keepers, folder, reporter) as node:
    await node.wait_ready(timeout_s)
    ...
# here everything is stopped; node.is_clean tells whether all went by themselves
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import msgspec

from deploy.nats.identities import Identities
from deploy.node.config import DRAIN_ORDER, NodeConfig, service_config, service_values
from deploy.node.folder import DataFolder
from deploy.node.keeper import Keeper
from deploy.node.listeners import Listeners
from deploy.node.nats_server import NatsServerOptions, free_port
from deploy.node.processes import NATS_SERVER, NatsServerProcess, NodeProcess, ServiceProcess
from deploy.node.rollout import NUM_LAST_WORDS, POLL_S, Report, Rollout
from deploy.node.security import server_security
from shared.config import build

MAX_DEATHS_BEFORE_READY = 3
HOPELESS = (2, 127)  # a configuration that cannot work; a command that cannot be run
DEFAULT_SHARD = "s0"
REQUEST_END_S = 10.0  # from a request's deadline until its answer has ended


class StartFailed(RuntimeError):
    """A process that does not come up; the message holds the end of its log."""


class Reporter(Protocol):
    """Told what happens, for people who watch."""

    def on_waiting(self, ready: Sequence[str], waiting: Mapping[str, str]) -> None:
        """While starting, whenever a process became ready or comes to something else. waiting: what each of the others
        is at, by name; empty where it does not say."""

    def on_death(self, process: str, status: int, delay_s: float) -> None:
        """A process died and is started again after delay_s."""

    def on_start_failed(self, process: str, reason: str, delay_s: float) -> None:
        """A process could not even be started; that is tried again after delay_s."""

    def on_stopping(self, role: str) -> None:
        """The processes of this service are being stopped."""


class Node:
    """Runs the processes while the context lasts.

    drain_s: seconds for all of them together to finish what runs at a stop; then they are told to end it.
    close_listeners: called when the node stops, so that connections are refused and do not wait.
    """

    def __init__(
        self,
        processes: Sequence[NodeProcess],
        folder: DataFolder,
        reporter: Reporter,
        drain_s: float,
        close_listeners: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_clean = True
        self._folder = folder
        self._reporter = reporter
        self._drain_s = drain_s
        self._close_listeners = close_listeners
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
    def keepers(self) -> Sequence[Keeper]:
        """One for each process."""
        return self._keepers

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
        told = {keeper.name: "" for keeper in waiting}
        while True:
            answers = await asyncio.gather(*(keeper.is_ready() for keeper in waiting))
            waiting = [keeper for keeper, ready in zip(waiting, answers, strict=True) if not ready]
            states = await asyncio.gather(*(keeper.state() for keeper in waiting))
            now = {keeper.name: state for keeper, state in zip(waiting, states, strict=True)}
            if now != told:
                self._reporter.on_waiting([each.name for each in self._keepers if each.name not in now], now)
            told = now
            if not waiting:
                return
            for keeper in waiting:
                if keeper.start_error:
                    raise StartFailed(f"{keeper.name} cannot be started: {keeper.start_error}")
                if keeper.status in HOPELESS or keeper.num_deaths >= MAX_DEATHS_BEFORE_READY:
                    raise StartFailed(self._obituary(keeper, f"ended with status {keeper.status}"))
            if time.monotonic() > deadline:
                raise StartFailed(self._obituary(waiting[0], f"not ready within {timeout_s:g} s"))
            await asyncio.sleep(POLL_S)

    async def restart(
        self,
        roles: Sequence[str],
        *,
        rolling: bool,
        ready_timeout_s: float,
        report: Report,
        goes_on: Callable[[], bool],
    ) -> None:
        """Start the processes of these services anew (rollout.py). Raises RestartFailed."""
        rollout = Rollout(self._keepers, self._folder, ready_timeout_s, self._hurry, report, goes_on)
        if rolling:
            await rollout.one_by_one(roles)
        else:
            await rollout.together(roles, self._drain_s)

    def _obituary(self, keeper: Keeper, what: str) -> str:
        words = self._folder.last_words(keeper.name, NUM_LAST_WORDS)
        return f"{keeper.name} {what}. The end of {self._folder.log(keeper.name)}:\n{words}"

    def _on_death(self, keeper: Keeper, delay_s: float) -> None:
        if keeper.start_error:
            self._reporter.on_start_failed(keeper.name, keeper.start_error, delay_s)
        else:
            self._reporter.on_death(keeper.name, keeper.status or 0, delay_s)

    async def _stop(self) -> None:
        """Stop role after role in drain order, nats-server last; what drains beyond drain_s is ended (Child.stop)."""
        deadline_s = time.monotonic() + self._drain_s
        for role in (*DRAIN_ORDER, NATS_SERVER):
            keepers = [keeper for keeper in self._keepers if keeper.process.role == role]
            if not keepers:
                continue
            self._reporter.on_stopping(role)
            for keeper in keepers:
                keeper.start_no_more()
            if role == DRAIN_ORDER[0]:
                self._close_listeners()
            left_s = max(0.0, deadline_s - time.monotonic())
            self.is_clean &= all(await asyncio.gather(*(keeper.stop(left_s, self._hurry) for keeper in keepers)))


def make_processes(
    config: NodeConfig,
    given: dict[str, Any],
    folder: DataFolder,
    listeners: Listeners,
    identities: Identities | None,
    worker_environments: Sequence[Mapping[str, str]],
) -> tuple[list[NodeProcess], str]:
    """The processes of a node and the URL of its NATS server.

    given: the options that the user gave, for the services that know them. identities: None for an open bus.
    worker_environments: what each worker finds in its environment beside the node's own. Raises ConfigError, OSError.
    """
    processes: list[NodeProcess] = []
    nats_url = config.nats
    if not nats_url:
        options = NatsServerOptions(
            store_dir=folder.store,
            port=free_port(),
            sync_interval=config.nats_sync_interval,
            security=server_security(identities, given.get("shard", DEFAULT_SHARD)) if identities else None,
        )
        processes.append(NatsServerProcess(folder, options))
        nats_url = options.url
    for service in DRAIN_ORDER:
        values = service_values(service, config, given)
        values |= {"nats": nats_url, "drain_timeout_s": config.drain_timeout_s}
        values |= identities.options(service) if identities else {}
        for index in range(config.count(service)):
            if service == "gateway":
                processes.append(_gateway(folder, index, values, config, listeners))
            elif service == "worker":
                environment = worker_environments[index]
                processes.append(ServiceProcess(folder, service, index, values, environment=environment))
            else:
                processes.append(ServiceProcess(folder, service, index, values))
    return processes, nats_url


def _gateway(
    folder: DataFolder, index: int, values: dict[str, Any], config: NodeConfig, listeners: Listeners
) -> ServiceProcess:
    """In a rolling restart its streams may take until their deadline; when the node stops, it is told to end them."""
    longest_s: float = msgspec.structs.asdict(build(service_config("gateway"), values))["request_timeout_s"]
    values = {
        **values,
        "port": config.port + index,
        "drain_timeout_s": max(config.drain_timeout_s, longest_s + REQUEST_END_S),
    }
    return ServiceProcess(folder, "gateway", index, values, partial(listeners.fds, index))
