"""A tokenizer service on a real nats-server, with stand-ins for the leader and a detokenizer."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from services.tokenizer.config import TokenizerConfig
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.service import TokenizerService
from shared import subjects
from shared.bus.client import Bus
from shared.log.memory import MemoryLog
from shared.log.port import Log
from shared.messages.codec import decoder, encode
from shared.messages.control import Attach, Attached, DetokenizerHeartbeat, LeaderHeartbeat, ShardLoad
from shared.messages.pipeline import End, Request
from shared.service import ServiceHost
from tests.servers import NatsServer
from tests.tokenizer.tiny_served_model import NAME, served_model
from tests.waiting import LIMIT_S, until

REQUEST_ID = "00112233445566778899aabbccddeeff"
ASK: dict[str, Any] = {"v": 1, "model": "tiny", "prompt": "The capital", "params": {"max_tokens": 5}}
GATEWAY_ASK = {**ASK, "request_id": REQUEST_ID, "attach": False, "seed_default": 4}

decode_request = decoder(Request)
decode_end = decoder(End)
LOAD = ShardLoad(num_workers=1, max_model_len=256)
_decode_attach = decoder(Attach)


class Running:
    """The service, a client's bus, and what the stand-ins saw."""

    def __init__(self, bus: Bus, service: TokenizerService, host: ServiceHost, registry: CollectorRegistry) -> None:
        self.bus = bus
        self.service = service
        self.host = host
        self.registry = registry
        self.attaches: list[Attach] = []
        self.detached: list[bytes] = []

    async def load(self, load: ShardLoad, takeover: int = 1) -> None:
        """Let the leader say this, and wait until the service has heard it. No workers: it has been so for long."""
        self.say(load, takeover)
        await until(lambda: self.service._view.load == load, "leader heartbeat")
        if load.num_workers == 0:
            self.service._view.workers_seen_s = float("-inf")

    def say(self, load: ShardLoad, takeover: int = 1) -> None:
        """One heartbeat of the leader, heard or not."""
        heartbeat = LeaderHeartbeat(shard="s0", leader="scheduler-1", takeover=takeover, load=load)
        self.bus.publish(subjects.leader_heartbeat("s0"), encode(heartbeat))

    async def ask(self, subject: str, message: Any, *, as_json: bool = True, reply: str | None = None) -> "Inbox":
        """Publish a message (bytes as they are) with an inbox for the answers."""
        inbox = await Inbox.open(self.bus)
        data = message if isinstance(message, bytes) else (msgspec.json.encode(message) if as_json else encode(message))
        self.bus.publish(subject, data, inbox.subject if reply is None else reply)
        return inbox

    def metric(self, name: str, **labels: str) -> float:
        """Value of a metric, 0 if it has none yet."""
        return self.registry.get_sample_value(f"tokenbus_tokenizer_{name}", labels) or 0.0

    def _on_attach(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        self.attaches.append(_decode_attach(data))
        self.bus.publish(reply, encode(Attached(detokenizer="detokenizer-1")))

    async def start_detokenizer(self, by_queue: bool = True) -> None:
        """A detokenizer that answers attachments: in the queue group, or only directly, as if the group were stuck."""
        subject = subjects.attach("s0") if by_queue else subjects.attach_direct("s0", "detokenizer-1")
        await self.bus.subscribe(subject, self._on_attach, subjects.DETOKENIZER_QUEUE if by_queue else "")
        await self.bus.subscribe(subjects.detach("s0"), lambda _s, _r, data, _h: self.detached.append(data))
        heartbeat = DetokenizerHeartbeat(detokenizer="detokenizer-1", folded=0)
        self.bus.publish(subjects.detokenizer_heartbeat("s0"), encode(heartbeat))
        await self.bus.flush()


class Inbox:
    """Answers of the service, decoded from JSON or msgpack."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.raw: list[bytes] = []

    @classmethod
    async def open(cls, bus: Bus) -> "Inbox":
        inbox = cls(bus.new_inbox())
        await bus.subscribe(inbox.subject, lambda _subject, _reply, data, _headers: inbox.raw.append(data))
        await bus.flush()
        return inbox

    async def next(self, index: int = 0) -> dict[str, Any]:
        """The answer with this index."""
        await until(lambda: len(self.raw) > index, "answer")
        data = self.raw[index]
        answer: dict[str, Any] = msgspec.json.decode(data) if data[:1] == b"{" else msgspec.msgpack.decode(data)
        return answer


@contextlib.asynccontextmanager
async def running(
    server: NatsServer, log: Log | None = None, *, attach: bool = True, lead: bool = True, **options: Any
) -> AsyncIterator[Running]:
    """The service, drained at the end. lead: under a leader with one worker. log: None for the real one."""
    from shared.bus.nats_log import NatsLog

    config = TokenizerConfig(nats=server.url, **options)
    host = ServiceHost("tokenizer", config)
    host.bus = await Bus.connect(server.url, host.name)
    client = await Bus.connect(server.url, "client-1")
    real_log = log if log is not None else await NatsLog.open(host.bus, config.shard)
    registry = CollectorRegistry()
    service = TokenizerService(host, config, real_log, {NAME: served_model()}, TokenizerMetrics(registry))
    serving = asyncio.create_task(service.run())
    try:
        run = Running(client, service, host, registry)
        if lead:
            await until(lambda: run.say(LOAD) or host.health().ready, "subscriptions")
            await host.bus.flush()
            await run.load(LOAD)
        if attach:
            await run.start_detokenizer()
        yield run
    finally:
        host.stopping.set()
        await asyncio.wait_for(serving, LIMIT_S)
        await client.close()
        await host.bus.close()


def memory_log() -> MemoryLog:
    return MemoryLog(time.time_ns)


def gateway_ask(**fields: Any) -> dict[str, Any]:
    return {**GATEWAY_ASK, "created_s": time.time(), **fields}


def records(log: MemoryLog, kind: str) -> list[bytes]:
    return [data for each, data, _ in log.records if each == kind]
