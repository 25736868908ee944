"""One behaviour suite for both logs: what holds on NATS is what the simulation may rely on."""

import json
import time
from collections.abc import AsyncIterator

import pytest

from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log import snapshot
from shared.log.fold import Change, Fold
from shared.log.memory import MemoryLog
from shared.log.port import LogFull
from shared.log.verify import verify
from shared.messages.codec import encode
from shared.messages.pipeline import Done, End, Fence
from tests.log.records import PROMPT, prefix_hash, request, rows
from tests.servers import NatsServer
from tests.waiting import until


class Fixture:
    """A log with what its acknowledgements said."""

    def __init__(self, log: MemoryLog | NatsLog, reply: str) -> None:
        self.log = log
        self.reply = reply
        self.acks: list[dict[str, object]] = []

    def on_ack(self, data: bytes) -> None:
        self.acks.append(json.loads(data))


@pytest.fixture(params=["memory", "nats"])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[Fixture]:
    if request.param == "memory":
        fixture = Fixture(MemoryLog(time.time_ns, lambda reply, data: fixture.on_ack(data)), "acks")
        yield fixture
        return
    server: NatsServer = request.getfixturevalue("nats_server")
    bus = await Bus.connect(server.url, "test-1")
    fixture = Fixture(await NatsLog.open(bus, "s0"), bus.new_inbox())
    await bus.subscribe(fixture.reply, lambda subject, reply, data, headers: fixture.on_ack(data))
    yield fixture
    await bus.close()


async def test_records_are_folded_in_log_order(port: Fixture) -> None:
    fold, kinds = Fold(), list[str]()

    def on_record(change: Change) -> None:
        kinds.append(change.kind)

    tail = port.log.tail(fold, on_record, lambda: None)
    await tail.start()
    takeover = await port.log.append_fence(encode(Fence(kind="takeover", leader="s1")), 0)
    assert takeover == 1
    accepted = await port.log.append("req", encode(request()), "req-a")
    assert port.log.append_frame(encode(rows("w1", takeover, 1, (accepted << 8, 0, 9, 0))), port.reply)
    await until(lambda: fold.seq == 3 and port.acks, "the frame")
    assert port.acks[0]["seq"] == 3
    assert kinds == ["fence", "req", "out"] and list(fold.sequences[accepted << 8].tokens) == [9]
    assert tail.live
    await tail.stop()


async def test_rule_02_a_fence_is_a_compare_and_set_on_the_newest(port: Fixture) -> None:
    first = await port.log.append_fence(encode(Fence(kind="takeover", leader="s1")), 0)
    assert first is not None
    assert await port.log.append_fence(encode(Fence(kind="takeover", leader="s2")), 0) is None
    await port.log.append("req", encode(request()), "req-a")
    second = await port.log.append_fence(encode(Fence(kind="takeover", leader="s2")), first)
    assert second == first + 2, "other records do not disturb the compare-and-set"


async def test_rule_12_a_retried_append_is_stored_once(port: Fixture) -> None:
    data = encode(request())
    assert await port.log.append("req", data, "req-a") == await port.log.append("req", data, "req-a")


async def test_rule_11_a_trimmed_log_is_read_from_the_snapshot(port: Fixture) -> None:
    fold = Fold()
    tail = port.log.tail(fold, lambda change: None, lambda: None)
    await tail.start()
    fence = await port.log.append_fence(encode(Fence(kind="takeover", leader="s1")), 0)
    accepted = await port.log.append("req", encode(request()), "req-a")
    port.log.append_frame(encode(rows("w1", 1, 1, (accepted << 8, 0, 9, prefix_hash(PROMPT, [])))), port.reply)
    await until(lambda: fold.seq == 3)
    await port.log.save_snapshot(snapshot.encode(snapshot.capture(fold)), fold.seq)
    kept = await port.log.append_fence(encode(Fence(kind="keep", leader="s1")), fence or 0)
    await port.log.trim(3)
    await port.log.append("end", encode(End(request_id="a" * 32, reason="cancel")), "cancel-a")
    reloads = list[int]()
    fresh = Fold()
    late = port.log.tail(fresh, lambda change: None, lambda: reloads.append(fresh.seq))
    await late.start()
    await until(lambda: fresh.seq == 5 and fold.seq == 5)
    assert reloads == [3], "the snapshot was loaded before the tail went on"
    assert snapshot.capture(fresh) == snapshot.capture(fold)
    assert fresh.sequences[accepted << 8].reason == "cancel" and not fresh.counts["prefix_mismatched"]
    assert await port.log.append_fence(encode(Fence(kind="takeover", leader="s2")), kept or 0), "still possible"
    report = await verify(port.log)
    assert report.clean and report.requests["a" * 32].token_ids == [9], "folded from the snapshot on"
    await late.stop()
    await tail.stop()


async def test_snapshots_survive_every_kind_of_state(port: Fixture) -> None:
    fold = Fold()
    tail = port.log.tail(fold, lambda change: None, lambda: None)
    await tail.start()
    await port.log.append_fence(encode(Fence(kind="takeover", leader="s1")), 0)
    for name in "abc":
        await port.log.append("req", encode(request(name * 32, n=2, logprobs=1)), f"req-{name}")
    await port.log.append("end", encode(End(request_id="b" * 32, reason="rejected", message="no")), "end-b")
    done = Done(request_id="b" * 32, positions=(0, 0), reasons=("rejected", "rejected"))
    await port.log.append("end", encode(done), "done-b")
    await port.log.append("end", encode(End(request_id="d" * 32, reason="cancel")), "cancel-d")
    await until(lambda: fold.seq == 7)
    again = Fold()
    snapshot.restore(again, snapshot.encode(snapshot.capture(fold)))
    assert snapshot.capture(again) == snapshot.capture(fold)
    assert again.tombstones["d" * 32].is_early_cancel
    await tail.stop()


async def test_rule_04_a_full_log_refuses_and_says_so(port: Fixture) -> None:
    if isinstance(port.log, MemoryLog):
        port.log.full = True
        log: MemoryLog | NatsLog = port.log
    else:
        log = await NatsLog.open(port.log.bus, "small", max_bytes=1000)
        with pytest.raises(LogFull):
            for number in range(20):
                await log.append("req", encode(request(str(number))), str(number))
    with pytest.raises(LogFull):
        await log.append("req", encode(request("z" * 32, prompt=[1] * 200)), "req-z")
    log.append_frame(encode(rows("w1", 1, 1, *[(256, i, 9, 0) for i in range(60)])), port.reply)
    await until(lambda: port.acks, "the refusal")
    assert "error" in port.acks[0]
