"""A detokenizer that is told to stop or stood still, on a real bus: its readers lose nothing and hear nothing wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY

from services.detokenizer.config import DetokenizerConfig
from services.detokenizer.core.desk import UNKNOWN_S
from services.detokenizer.service import DetokenizerService
from shared import subjects
from shared.bus.client import Bus
from shared.bus.log_tail import NatsTail
from shared.bus.nats_log import NatsLog
from shared.log.state import sequence_id
from shared.messages.codec import decoder, encode
from shared.messages.control import Attach, DetokenizerHeartbeat
from shared.messages.pipeline import Delta
from shared.reading.hub import StreamHub
from shared.reading.stream import Stream
from shared.service import ServiceHost
from tests.log.records import PROMPT, prefix_hash, request, rows
from tests.servers import NatsServer
from tests.stored_models import store_tiny_model
from tests.waiting import LIMIT_S, until

RID = "a" * 32
NUM_TOKENS = 40


@contextlib.asynccontextmanager
async def serving(server: NatsServer, folder: Path) -> AsyncIterator[tuple[DetokenizerService, "asyncio.Task[None]"]]:
    """A detokenizer in this process, and its run."""
    config = DetokenizerConfig(nats=server.url, model="tiny", model_repository=str(folder / "models"))
    host = ServiceHost("detokenizer", config)
    host.bus = await Bus.connect(server.url, host.name)
    service = DetokenizerService(host, config, await NatsLog.find(host.bus, config.shard))
    REGISTRY.unregister(service._metrics)  # there are two in this process
    running = asyncio.create_task(service.run())
    try:
        await until(lambda: service.tail_live or running.done(), "the log")
        yield service, running
    finally:
        host.stopping.set()
        await asyncio.wait_for(running, LIMIT_S)
        await host.bus.close()


@pytest.fixture
async def log(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[NatsLog]:
    await asyncio.to_thread(store_tiny_model, tmp_path, "LlamaForCausalLM")
    bus = await Bus.connect(nats_server.url, "test-1")
    yield await NatsLog.open(bus, "s0")
    await bus.close()


async def append_request(log: NatsLog) -> int:
    """A request for the tiny model; the id of its sequence."""
    record = msgspec.structs.replace(request(RID, max_tokens=NUM_TOKENS, eos_token_ids=()), model="tiny")
    return sequence_id(await log.append("req", encode(record), RID), 0)


async def append_token(log: NatsLog, sequence: int, position: int) -> None:
    """The token at this position: always 9."""
    row = (sequence, position, 9, prefix_hash(PROMPT, [9] * position))
    await log.append("out", encode(rows("w1", 0, position + 1, row)), f"step-{position}")


async def test_readers_go_on_elsewhere_at_once_and_it_stops_when_they_are_gone(
    nats_server: NatsServer, log: NatsLog, tmp_path: Path
) -> None:
    deltas: list[Delta] = []
    hub = StreamHub(log.bus)
    await hub.start()
    await hub.follow("s0")
    async with serving(nats_server, tmp_path) as (first, stopped):
        sequence = await append_request(log)
        stream = Stream(RID, "s0", 1, lambda delta, _: deltas.append(delta))
        hub.attach(stream)
        await append_token(log, sequence, 0)
        await until(lambda: stream.positions == [1] and stream.source)
        async with serving(nats_server, tmp_path) as (second, _):
            await until(lambda: second._host.name in hub.heard_lately("s0"))
            first._host.stopping.set()
            for position in range(1, NUM_TOKENS):
                await append_token(log, sequence, position)
            await until(lambda: stream.is_done)
            await stopped
            assert len(first.desk.attachments) == 0, "it served on until its reader was gone"
            assert hub.attachments.num_reattached == 1
    read = [position for delta in deltas for position in range(delta.start, delta.stop)]
    assert read == list(range(NUM_TOKENS))
    await hub.stop()


async def test_it_takes_nothing_new_but_serves_who_stays_for_a_moment(
    nats_server: NatsServer, log: NatsLog, tmp_path: Path
) -> None:
    """The only detokenizer: its readers have nowhere to go."""
    beats: list[DetokenizerHeartbeat] = []
    batches: list[bytes] = []
    decode = decoder(DetokenizerHeartbeat)
    beat_subject = subjects.detokenizer_heartbeat("s0")
    await log.bus.subscribe(beat_subject, lambda subject, reply, data, headers: beats.append(decode(data)))
    await log.bus.subscribe("_INBOX.test.1", lambda subject, reply, data, headers: batches.append(data))
    await log.bus.flush()
    async with serving(nats_server, tmp_path) as (service, stopped):
        await append_request(log)
        attach = Attach(request_id=RID, inbox="_INBOX.test.1", number=1)
        await until(lambda: log.bus.publish(subjects.attach("s0"), encode(attach)) and len(service.desk.attachments))
        await until(lambda: beats)
        assert not any(beat.leaving for beat in beats)
        service._host.stopping.set()
        await until(lambda: beats[-1].leaving)
        num_before = len(batches)
        await until(lambda: len(batches) > num_before or stopped.done(), "heartbeats of the inbox")
        assert not stopped.done()
        await stopped
    assert sum(beat.leaving for beat in beats) >= 2


async def test_after_a_pause_it_reads_the_log_before_it_denies_a_request(
    nats_server: NatsServer, log: NatsLog, tmp_path: Path
) -> None:
    """A stopped process finds the attach, and behind it in the log the request, only when it goes on."""
    async with serving(nats_server, tmp_path) as (service, _):
        service.desk.attach(Attach(request_id=RID, inbox="_INBOX.test.1", number=1), service._loop.time())
        (attachment,) = service.desk.attachments
        for is_paused in (True, False):
            assert len(service.desk.attachments) == 1
            await until(lambda: service.tail_live)
            attachment.since -= 2 * UNKNOWN_S
            service._ticked_at = service._loop.time() - 2 * UNKNOWN_S * is_paused
            service._tick(prune=False)
        assert len(service.desk.attachments) == 0


async def test_a_detokenizer_that_is_told_to_stop_before_it_knows_the_log_goes(
    log: NatsLog, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be away for long, and a drain that waits for it would end as a failure."""
    starting = asyncio.Event()

    async def start_for_ever(tail: NatsTail) -> None:
        starting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(NatsTail, "start", start_for_ever)
    config = DetokenizerConfig(nats=nats_server.url, model="tiny", model_repository=str(tmp_path / "models"))
    host = ServiceHost("detokenizer", config)
    host.bus = await Bus.connect(nats_server.url, host.name)
    service = DetokenizerService(host, config, log)
    REGISTRY.unregister(service._metrics)
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(starting.wait(), LIMIT_S)
    host.stopping.set()
    await asyncio.wait_for(running, LIMIT_S)
    await host.bus.close()
