"""The tail on a real server: killed, cut off, trimmed under its feet, restored from an older state."""

import asyncio
import gc
import shutil
from pathlib import Path

import pytest

from shared.bus import log_tail
from shared.bus.client import Bus
from shared.bus.log_tail import LogLost, NatsTail
from shared.bus.nats_log import NatsLog
from shared.log.fold import Fold
from shared.messages.codec import encode
from shared.messages.pipeline import Fence
from tests.log.records import request
from tests.servers import NatsServer
from tests.waiting import until


async def opened(server: NatsServer) -> tuple[Bus, NatsLog, Fold, NatsTail]:
    bus = await Bus.connect(server.url, "test-1")
    log = await NatsLog.open(bus, "s0")
    fold = Fold()
    tail = log.tail(fold, lambda change: None, lambda: None)
    await tail.start()
    return bus, log, fold, tail


async def test_the_tail_goes_on_after_the_server_was_killed(nats_server: NatsServer) -> None:
    bus, log, fold, tail = await opened(nats_server)
    for number in range(20):
        await log.append("req", encode(request(f"{number:032x}")), f"req-{number}")
    await until(lambda: fold.seq == 20)
    await asyncio.to_thread(nats_server.kill)
    await until(lambda: not tail.live, "the tail noticing")
    appending = asyncio.create_task(log.append("req", encode(request("f" * 32)), "req-f"))
    await asyncio.to_thread(nats_server.restart)
    assert await appending == 21
    await until(lambda: fold.seq == 21 and tail.live)
    assert len(fold.requests) == 21
    await tail.stop()
    await bus.close()


async def test_a_gap_makes_the_tail_read_again(nats_server: NatsServer) -> None:
    bus, log, fold, tail = await opened(nats_server)
    await log.append("req", encode(request("a" * 32)), "req-a")
    await until(lambda: fold.seq == 1)
    assert tail._subscription is not None
    number, dropped = tail._subscription._inner._id, list[bytes]()
    lost = bus._client.handlers[number]
    bus._client.handlers[number] = lambda subject, reply, data, headers: dropped.append(data)
    second = encode(request("b" * 32))
    await log.append("req", second, "req-b")
    await until(lambda: second in dropped, "the lost record")
    bus._client.handlers[number] = lost
    await log.append("req", encode(request("c" * 32)), "req-c")
    await until(lambda: fold.seq == 3)
    assert list(fold.requests) == ["a" * 32, "b" * 32, "c" * 32] and tail.resets >= 2
    await tail.stop()
    await bus.close()


async def test_rule_11_a_log_that_ends_before_the_fold_is_noticed(nats_server: NatsServer) -> None:
    bus, log, fold, tail = await opened(nats_server)
    await log.append("req", encode(request()), "req-a")
    await until(lambda: fold.seq == 1)
    await tail.stop()
    fold.seq = 1000
    ahead = log.tail(fold, lambda change: None, lambda: None)
    with pytest.raises(LogLost):
        await ahead.start()
    await bus.close()


async def test_rule_11_a_deleted_log_ends_the_process_that_folded_it(nats_server: NatsServer) -> None:
    bus, log, fold, tail = await opened(nats_server)
    fatal = list[BaseException]()
    bus.fatal = fatal.append
    await log.append("req", encode(request()), "req-a")
    await until(lambda: fold.seq == 1)
    await asyncio.to_thread(nats_server.kill)
    shutil.rmtree(Path(nats_server.options.store_dir))
    await asyncio.to_thread(nats_server.restart)
    other = await Bus.connect(nats_server.url, "test-2")
    await NatsLog.open(other, "s0")
    await until(lambda: fatal, "the tail noticing")
    assert isinstance(fatal[0], LogLost)
    await tail.stop()
    await bus.close()
    await other.close()


@pytest.mark.parametrize("task", ["resets", "watch"])
async def test_an_error_within_the_tail_ends_the_process(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Whatever it is: a fold that stands still unnoticed is worse than a new start."""
    bus, _, _, tail = await opened(nats_server)
    fatal = list[BaseException]()
    bus.fatal = fatal.append

    async def fail(*_: object) -> None:
        raise ValueError("unforeseen")

    if task == "resets":
        monkeypatch.setattr(tail, "_reset_consumer", fail)
        tail.request_reset()
    else:
        monkeypatch.setattr(bus, "probe", fail)
        monkeypatch.setattr(log_tail, "SILENCE_S", float("-inf"))
    await until(lambda: fatal, "the end")
    assert isinstance(fatal[0], ValueError)
    await tail.stop()
    await bus.close()


async def test_rule_11_a_trimmed_newest_fence_does_not_end_take_overs(nats_server: NatsServer) -> None:
    """To the server it never was; a full log has to be trimmed before it takes Fence{keep}."""
    bus, log, fold, tail = await opened(nats_server)
    fence = await log.append_fence(encode(Fence(kind="takeover", leader="s1")), 0)
    await log.append("req", encode(request()), "req-a")
    await until(lambda: fold.seq == 2)
    await log.trim(1)
    second = await log.append_fence(encode(Fence(kind="takeover", leader="s2")), fence or 0)
    assert second == 3
    assert await log.append_fence(encode(Fence(kind="takeover", leader="s3")), fence or 0) is None, "one of them wins"
    await tail.stop()
    await bus.close()


async def test_a_tail_that_is_stopped_as_soon_as_it_has_started_leaves_nothing_behind(nats_server: NatsServer) -> None:
    """Its tasks may not have begun yet: a coroutine that nobody has awaited by then would be a warning."""
    for _ in range(3):
        bus, _, _, tail = await opened(nats_server)
        await tail.stop()
        await bus.close()
        del tail
    gc.collect()
