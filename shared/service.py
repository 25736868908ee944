"""The life of a service process, the same for all five: configure, connect, serve, drain, exit.

1. options and TOML file (exit 2 on a bad one), logging, uvloop
2. the health and metrics listener, so that /live answers while NATS is still away
3. the bus, then the NATS service API
4. serve(host, config) until SIGTERM or SIGINT sets host.stopping and it has drained; a later signal sets host.hurrying,
   which ends the drain
5. exit 0; 1 after a crash, an early return, or a drain beyond drain_timeout_s; 2 when serve raised StartError
"""

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from structlog.typing import FilteringBoundLogger

from shared.bus.client import Bus
from shared.bus.credentials import ANONYMOUS, Credentials, CredentialsError, read_credentials
from shared.config import ServiceConfig, fail, load, without_password
from shared.health import Health, HealthServer
from shared.logs import configure_logging, get_logger
from shared.micro import Endpoint, EndpointCounts, MicroService
from shared.process_gauges import export_process_gauges
from shared.stop_signals import StopSignals

__all__ = ["EndpointCounts", "Health", "ServiceHost", "StartError", "main"]

C = TypeVar("C", bound=ServiceConfig)
T = TypeVar("T")

CANCEL_GRACE_S = 2.0
NATS_SILENCE_S = 2.0  # without a connection, until the log says so


class StartError(Exception):
    """serve cannot start, and would not the next time either: a model that is not there, limits that cannot fit.

    The message is for the operator; it is logged in one line and the process exits 2, which supervisors do not retry.
    """

    @classmethod
    def of_path(cls, option: str, path: Path, error: OSError) -> "StartError":
        """What cannot be done at the path that an option gave, or below it."""
        return cls(f"{option}: {error.filename or path}: {error.strerror or error}")


class ServiceHost:
    """What a running service has around it.

    name: the incarnation, `<service>-<pid>-<8 hex>`, unique per process start. bus: connected before serve is called.
    stopping: set by SIGTERM or SIGINT; then serve drains and returns. hurrying: set by a later signal; then serve
    drains no longer. health: assign a function that tells the truth; until then, without NATS and while stopping the
    service is not ready. num_subscriptions(): those of the bus, 0 before there is one.
    """

    bus: Bus

    def __init__(self, service: str, config: ServiceConfig, credentials: Credentials = ANONYMOUS) -> None:
        self.service = service
        self._credentials = credentials
        self.config = config
        self.name = f"{service}-{os.getpid()}-{secrets.token_hex(4)}"
        self.log: FilteringBoundLogger = get_logger(service=service, instance=config.name or self.name)
        self.stopping = asyncio.Event()
        self.hurrying = asyncio.Event()
        self.health: Callable[[], Health] = _starting
        self.micro = MicroService(service, self.name, f"Tokenbus {service}", _metadata(config))
        self._is_connected: Callable[[], bool] = lambda: False
        self.num_subscriptions: Callable[[], int] = lambda: 0

    def add_stats(self, name: str, subject: str, read: Callable[[], EndpointCounts], queue_group: str = "") -> None:
        """Show an endpoint in the NATS service API; read gives its counters so far."""
        self.micro.add(Endpoint(name, subject, queue_group, read))

    def check_health(self) -> Health:
        """health() as the probes see it."""
        nats, stopping = self._is_connected(), self.stopping.is_set()
        health = self.health()
        details: dict[str, object] = {"service": self.service, "name": self.name, "nats": nats, "stopping": stopping}
        missing = [*([] if nats else ["nats"]), *(["stopping"] if stopping else []), *health.missing]
        return Health(health.ready and nats and not stopping, details | health.details, missing)

    async def connect(self) -> Bus:
        """Connect the bus, waiting until NATS is there, and answer the NATS service API."""
        telling = asyncio.get_running_loop().call_later(NATS_SILENCE_S, self._tell_silence)
        try:
            self.bus = await Bus.connect(self.config.nats, self.name, self._credentials, role=self.service)
        finally:
            telling.cancel()
        self._is_connected = lambda: self.bus.is_connected
        self.num_subscriptions = lambda: self.bus.num_subscriptions
        for subject in self.micro.subjects():
            await self.bus.subscribe(subject, self._on_micro)
        return self.bus

    async def unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of what is awaited; None when the service is told to stop first, the work being cancelled."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        return None

    def _tell_silence(self) -> None:
        nats = without_password(self.config.nats)
        self.log.warning("still waiting: no NATS server answers at --nats, or none that lets this one in", nats=nats)

    def _on_micro(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        if reply:
            self.bus.publish(reply, self.micro.answer(subject))


def main(
    service: str,
    config_type: type[C],
    serve: Callable[[ServiceHost, C], Awaitable[None]],
    argv: list[str] | None = None,
) -> None:
    """Run one service until it is told to stop; ends the process."""
    prog = f"tokenbus {service}"
    config = load(config_type, sys.argv[1:] if argv is None else argv, prog)
    try:
        credentials = read_credentials(config)
    except CredentialsError as error:
        fail(prog, str(error))
    configure_logging(config.log_level, config.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_run(ServiceHost(service, config, credentials), config, serve))
    raise SystemExit(status)


async def _run(host: ServiceHost, config: C, serve: Callable[[ServiceHost, C], Awaitable[None]]) -> int:
    loop = asyncio.get_running_loop()
    signals = StopSignals(host.stopping.set, host.hurrying.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.on_signal)
    loop.set_exception_handler(lambda _, context: _on_stray_error(host, context))
    export_process_gauges(lambda: host.num_subscriptions())
    server = None
    if config.health_port >= 0:
        server = HealthServer(config.health_host, config.health_port, host.check_health)
        try:
            await server.start()
        except OSError as error:
            options = f"--health-host {server.host}, --health-port {server.port}"
            host.log.error("cannot listen for health", reason=f"{options}: {error.strerror or error}")
            return 1
        host.log.info("health listener", url=f"http://{server.host}:{server.port}")
    try:
        return await _connect_and_serve(host, config, serve)
    finally:
        if server is not None:
            await server.close()


def forget_imports() -> None:
    """Take what the imports have left out of the garbage collector's sight.

    It looks at old objects only once there are a quarter as many new ones, and a hundred thousand of the modules never
    go: the garbage of connections and requests would pile up for many minutes, and each look would take long.
    """
    gc.collect()
    gc.freeze()


async def _connect_and_serve(host: ServiceHost, config: C, serve: Callable[[ServiceHost, C], Awaitable[None]]) -> int:
    if await host.unless_stopping(host.connect()) is None:
        return 0
    host.log.info("connected", nats=without_password(config.nats), name=host.name)
    forget_imports()
    stopped = asyncio.ensure_future(host.stopping.wait())
    serving = asyncio.ensure_future(serve(host, config))
    await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
    if host.stopping.is_set():
        host.log.info("draining", limit_s=config.drain_timeout_s)
        await asyncio.wait({serving}, timeout=config.drain_timeout_s)
        if not serving.done():
            return await _give_up(host, serving)
    stopped.cancel()
    status = _outcome(host, serving)
    await host.bus.close()
    host.log.info("stopped", status=status)
    return status


def _outcome(host: ServiceHost, serving: "asyncio.Future[None]") -> int:
    if serving.cancelled():
        host.log.error("service was cancelled")
        return 1
    error = serving.exception()
    if isinstance(error, StartError):
        host.log.error("cannot start", reason=str(error))
        return 2
    if error is not None:
        host.log.error("service crashed", exc_info=error)
        return 1
    if not host.stopping.is_set():
        host.log.error("service ended without being told to stop")
        return 1
    return 0


async def _give_up(host: ServiceHost, serving: "asyncio.Future[None]") -> int:
    """Cancel a drain that takes too long; a task that ignores even that ends with the process."""
    host.log.error("drain took too long", limit_s=host.config.drain_timeout_s)
    serving.cancel()
    _, pending = await asyncio.wait({serving}, timeout=CANCEL_GRACE_S)
    if pending:
        sys.stderr.flush()
        os._exit(1)
    return 1


def _on_stray_error(host: ServiceHost, context: dict[str, Any]) -> None:
    """An exception that no task awaits is a bug, never silent."""
    host.log.error("stray error in the event loop", message=context.get("message"), exc_info=context.get("exception"))


def _starting() -> Health:
    return Health(False, {"state": "starting"}, ["starting"])


def _metadata(config: ServiceConfig) -> dict[str, str]:
    return {"shard": config.shard, "label": config.name, "pid": str(os.getpid())}
