"""The gateway service: HTTP in front, the pipeline behind, an ordered drain at the end."""

import asyncio
import os
import time

from services.gateway.canary_probe import CanaryProbe
from services.gateway.config import GatewayConfig
from services.gateway.endpoints import Endpoints
from services.gateway.http.exchange import Exchange
from services.gateway.http.routes import Routes
from services.gateway.http.server import HttpServer
from services.gateway.metrics import GatewayMetrics
from services.gateway.pipeline import Pipeline
from shared.errors import unavailable
from shared.service import EndpointCounts, Health, ServiceHost, StartError

CLOSE_RESERVE_S = 2.0
HEARD_LIMIT_S = 5.0
HEARD_POLL_S = 0.02


class Gateway:
    """All parts of a running gateway; `server.port` is the real one after start."""

    def __init__(self, host: ServiceHost, config: GatewayConfig, metrics: GatewayMetrics) -> None:
        self._host = host
        self._config = config
        self._metrics = metrics
        self._num_requests = 0
        self._num_errors = 0
        self.pipeline = Pipeline(host.bus, config.shard, host.log)
        self.canary = CanaryProbe(self.pipeline, metrics, config.canary_interval_s, host.name, host.log)
        self.endpoints = Endpoints(config, self.pipeline, metrics, self._check_health)
        routes = Routes(host.log, self._on_answered, config.access_log)
        self.endpoints.add_to(routes)
        self.server = HttpServer(routes, config.host, config.port, config.limits, self._count, config.listen_fd)

    async def start(self) -> None:
        """Listen; OSError when the address is taken."""
        await self.pipeline.start()
        self.canary.start()
        if self._config.listen_fd:
            await self._hear_of_the_pipeline()
        await self.server.start()
        self._host.health = self._health
        self._host.add_stats("http", f"http://{self.server.host}:{self.server.port}", self._counts)
        self._metrics.running.set_function(lambda: len(self.endpoints.generations))
        hub = self.pipeline.hub
        self._metrics.follow(
            "tokenbus_reattached_streams",
            "Streams that had to attach to a detokenizer again",
            lambda: hub.attachments.num_reattached,
        )
        self._metrics.follow(
            "tokenbus_malformed_messages",
            "Messages from the bus that could not be decoded",
            lambda: hub.num_malformed + self.pipeline.num_malformed,
        )
        canaries = self.canary.canaries
        self._metrics.follow("tokenbus_canaries", "Canary requests sent", lambda: canaries.num_sent)
        self._metrics.follow("tokenbus_canaries_failed", "Canary requests that failed", lambda: canaries.num_failed)
        self._host.log.info("serving", url=f"http://{self.server.host}:{self.server.port}")

    async def _hear_of_the_pipeline(self) -> None:
        """Take no connection from a shared socket before this process can serve it: another gateway may know already
        what this one would have to refuse. If nothing is heard for too long, a refusal is the truth."""
        until = time.monotonic() + HEARD_LIMIT_S
        while self.pipeline.readiness.missing(time.monotonic()) and time.monotonic() < until:
            if self._host.stopping.is_set():
                return
            await asyncio.sleep(HEARD_POLL_S)

    async def drain(self) -> None:
        """Answer what came; at the drain limit, or when told to hurry, end the rest with an error event."""
        until = time.monotonic() + max(0.0, self._config.drain_timeout_s - CLOSE_RESERVE_S)
        await self.server.drain(lambda: self._host.hurrying.is_set() or time.monotonic() >= until)
        self.pipeline.readiness.is_draining = True
        self.endpoints.fail_all(unavailable("This server is shutting down; try again.", code="draining"))
        await self.server.stop(CLOSE_RESERVE_S / 2)
        await self.canary.stop()
        await self.pipeline.stop(CLOSE_RESERVE_S / 4)

    def _check_health(self) -> Health:
        return self._host.check_health()

    def _health(self) -> Health:
        now = time.monotonic()
        missing = self.pipeline.readiness.lacks(now, self.canary.canaries)
        details: dict[str, object] = {
            "canary": self.canary.states(),
            "log_full": self.pipeline.readiness.is_log_full,
            "models": [card.name for card in self.pipeline.models.cards(now)],
            "generations": len(self.endpoints.generations),
            "connections": self.server.num_connections,
        }
        return Health(not missing, details, missing)

    def _on_answered(self, exchange: Exchange) -> None:
        self._count(exchange.status)

    def _count(self, status: int) -> None:
        self._num_requests += 1
        self._num_errors += status >= 400
        self._metrics.count_answer(status)

    def _counts(self) -> EndpointCounts:
        return EndpointCounts(num_requests=self._num_requests, num_errors=self._num_errors)


async def serve(host: ServiceHost, config: GatewayConfig) -> None:
    """Serve until the host is told to stop, then drain."""
    gateway = Gateway(host, config, GatewayMetrics())
    try:
        await gateway.start()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        descriptors = " ".join(str(each) for each in config.listen_fd)
        where = f"--listen-fd {descriptors}" if descriptors else f"--host {config.host}, --port {config.port}"
        raise StartError(f"{where}: cannot listen there: {reason}") from None
    await host.stopping.wait()
    await gateway.drain()
