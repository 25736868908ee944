"""A gateway in this process, a real nats-server, and a scripted pipeline behind it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from services.gateway.config import GatewayConfig
from services.gateway.metrics import GatewayMetrics
from services.gateway.service import Gateway
from shared.errors import unavailable
from shared.service import ServiceHost
from tests.gateway.raw_stream import Open, Streaming, head_of
from tests.gateway.stand_in import StandIn
from tests.servers import NatsServer
from tests.waiting import LIMIT_S, until


class Running:
    """A ready gateway with its pipeline. http: a client of it."""

    def __init__(self, gateway: Gateway, host: ServiceHost, stand_in: StandIn, registry: CollectorRegistry) -> None:
        self.gateway = gateway
        self.host = host
        self.stand_in = stand_in
        self.registry = registry
        self.port = gateway.server.port
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=LIMIT_S)

    async def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions with defaults for what is not given."""
        return await self.http.post("/v1/completions", json={"model": "tiny", "prompt": "hello", **fields})

    async def chat(self, **fields: Any) -> httpx.Response:
        """POST /v1/chat/completions with defaults for what is not given."""
        messages = [{"role": "user", "content": "hello"}]
        return await self.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, **fields})

    def openai(self) -> AsyncOpenAI:
        """OpenAI's own client, as it comes."""
        return AsyncOpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="unused", max_retries=0)

    def value(self, name: str, **labels: str) -> float:
        """A metric's sample."""
        return self.registry.get_sample_value(name, labels) or 0.0


async def start_gateway(url: str, stand_in: StandIn, **options: Any) -> Running:
    """A gateway with these options, started and ready. Without canaries, which would stand among the requests."""
    config = GatewayConfig(nats=url, port=0, **{"canary_interval_s": 0, **options})
    host = ServiceHost("gateway", config)
    await host.connect()
    registry = CollectorRegistry()
    gateway = Gateway(host, config, GatewayMetrics(registry))
    await gateway.start()
    await until(lambda: host.check_health().ready, "a ready gateway")
    return Running(gateway, host, stand_in, registry)


async def stop_gateway(running: Running) -> None:
    """End it and all its connections."""
    await running.http.aclose()
    running.gateway.endpoints.fail_all(unavailable("the test is over"))
    await running.gateway.drain()
    await running.host.bus.close()


@pytest.fixture
async def stand_in(nats_server: NatsServer) -> AsyncIterator[StandIn]:
    stand_in = await StandIn.start(nats_server.url)
    yield stand_in
    await stand_in.stop()


@pytest.fixture
async def running(nats_server: NatsServer, stand_in: StandIn) -> AsyncIterator[Running]:
    running = await start_gateway(nats_server.url, stand_in)
    yield running
    await stop_gateway(running)


@pytest.fixture
async def open_stream(running: Running) -> AsyncIterator[Open]:
    """Asks the gateway for streams, which are closed after the test."""
    opened: list[Streaming] = []

    async def open_one(**fields: Any) -> Streaming:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=2**16)
        body = json.dumps({"model": "tiny", "prompt": "hello", "stream": True, **fields}).encode()
        writer.write(head_of(body))
        await writer.drain()
        opened.append(Streaming(reader, writer))
        return opened[-1]

    yield open_one
    for streaming in opened:
        await streaming.leave()
