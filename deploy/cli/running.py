"""A node as `tokenbus up` and `tokenbus demo` run it: prepared, ready, stopped in order."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from deploy.cli.display import NodeDisplay
from deploy.cli.output import OutputClosed
from deploy.cli.progress import model_progress
from deploy.nats.identities import Identities
from deploy.node.checks import NotPossible, check_nats
from deploy.node.config import NodeConfig
from deploy.node.control import ControlServer
from deploy.node.devices import worker_environments
from deploy.node.folder import DataFolder, FolderInUse
from deploy.node.limits import raise_file_limit
from deploy.node.listeners import Listeners, open_listeners
from deploy.node.nats_server import NatsServerMissing
from deploy.node.node import Node, StartFailed, make_processes
from deploy.node.processes import NodeProcess
from deploy.node.security import check_log, check_options, node_identities
from shared.repository.errors import BadModelFile, ModelError
from shared.repository.store import ModelRepository
from shared.stop_signals import StopSignals

START_ERRORS = (NotPossible, FolderInUse, StartFailed, NatsServerMissing, ModelError, OSError)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class PreparedNode(msgspec.Struct, frozen=True):
    """All that can be settled before the first process starts. config.port is a real one. identities: who may sign in
    to nats_url; None where nobody does."""

    config: NodeConfig
    folder: DataFolder
    listeners: Listeners
    processes: list[NodeProcess]
    nats_url: str
    identities: Identities | None
    served_names: list[str]

    @property
    def http_url(self) -> str:
        """Where all gateways listen, for clients on this machine."""
        return self.listeners.urls[0]


@contextlib.contextmanager
def prepared_node(config: NodeConfig, given: dict[str, Any], console: Console) -> Iterator[PreparedNode]:
    """Take the data folder, open the HTTP sockets, check NATS and devices, fetch and check the model.

    given: options for services. Raises START_ERRORS, and ConfigError when a service does not accept what was given.
    """
    check_options(config, given)
    raise_file_limit()
    folder = DataFolder.at(config.data_dir)
    try:
        folder.open()
    except OSError as error:
        raise NotPossible(f"--data-dir {folder.root}: {error.strerror or error}") from None
    with (
        contextlib.closing(folder),
        contextlib.closing(open_listeners(config.host, config.port, config.gateways)) as listeners,
    ):
        config = msgspec.structs.replace(config, port=listeners.port)
        if config.nats:
            check_nats(config.nats)
        environments = worker_environments(config, given)
        check_log(config, folder)
        identities = node_identities(config, folder)
        # A version added later must not make a restarted service differ from the others.
        options = {**given, "model_version": _sound_version(config.model, given, console)}
        processes, nats_url = make_processes(config, options, folder, listeners, identities, environments)
        folder.rotate_logs()
        served_names = list(given.get("served_model_name") or [config.model])
        yield PreparedNode(config, folder, listeners, processes, nats_url, identities, served_names)


def _sound_version(name: str, given: dict[str, Any], console: Console) -> str:
    """The version to serve, after reading all its weights: the one that was asked for, or the newest that is sound."""
    root, version = given.get("model_repository"), given.get("model_version")
    repository = ModelRepository(Path(root) if root else None)

    def warn(name: str, version: str, error: BadModelFile) -> None:
        console.print(f"Warning: {name} version {version} is passed over: {error}", highlight=False, markup=False)

    with model_progress(console) as progress:
        if not version:
            return repository.ensure(name, progress, reread=True, on_passed_over=warn).version
        if not repository.versions(name):
            repository.ensure(name, progress)
        model = repository.open(name, version)
        model.verify_weights(progress)
    return model.version


@contextlib.asynccontextmanager
async def running_node(prepared: PreparedNode, console: Console, stopping: asyncio.Event) -> AsyncIterator[Node]:
    """The node, ready; stopped when the context ends. Raises StartFailed, OutputClosed.

    stopping is set by SIGTERM, SIGINT and SIGHUP, and when nobody reads the node's news any more; when that happens
    during the start, the context begins at once. A second signal ends the drain, unless it comes with the first: just,
    timeout and others send both the group and the process one.
    """
    config, folder = prepared.config, prepared.folder
    display = NodeDisplay(console, stopping.set)
    display.start("Starting")
    try:
        async with (
            Node(prepared.processes, folder, display, config.drain_timeout_s, prepared.listeners.close) as node,
            ControlServer(node, folder.control, config.ready_timeout_s) as control,
        ):
            _handle_signals(stopping, node)
            if prepared.identities is not None:
                folder.write_credentials(prepared.identities.root)
            folder.write_urls("nats.url", [prepared.nats_url])
            await _until_ready(node, config.ready_timeout_s, stopping)
            display.done()
            if not stopping.is_set():
                folder.write_urls("http.urls", prepared.listeners.urls)
                folder.write_urls("http.url", [prepared.http_url])
                control.is_open = True
            yield node
            display.start("Stopping")
    finally:
        display.done()
    if display.is_unread:
        raise OutputClosed


async def _until_ready(node: Node, timeout_s: float, stopping: asyncio.Event) -> None:
    """Wait for readiness or for the wish to stop, whatever comes first."""
    ready = asyncio.ensure_future(node.wait_ready(timeout_s))
    stop = asyncio.ensure_future(stopping.wait())
    try:
        both: list[asyncio.Future[Any]] = [ready, stop]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
    finally:
        ready.cancel()
        stop.cancel()


def _handle_signals(stopping: asyncio.Event, node: Node) -> None:
    signals = StopSignals(stopping.set, node.hurry)
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, signals.on_signal)
