"""Asking what a request is, over a real bus, while detokenizers come, lag and hang."""

from collections.abc import AsyncIterator

import pytest

from shared import subjects
from shared.bus.client import Bus, Handler
from shared.errors import RequestError
from shared.messages.codec import decoder, encode
from shared.messages.control import Describe, Described, DetokenizerHeartbeat
from shared.reading import description
from shared.reading.description import describe
from shared.reading.hub import StreamHub
from tests.servers import NatsServer
from tests.waiting import until

RID = "a" * 32
decode_describe = decoder(Describe)


class Bench:
    """One bus for both sides. asked: subjects in order."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.hub = StreamHub(bus)
        self.asked: list[str] = []

    def answering(self, *answers: Described | bytes | None) -> Handler:
        """A detokenizer that gives these answers in turn and repeats the last one; None: says nothing."""
        left = list(answers)

        def on_describe(subject: str, reply: str, data: bytes, headers: bytes) -> None:
            assert decode_describe(data).request_id == RID
            self.asked.append(subject)
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer is not None:
                self.bus.publish(reply, answer if isinstance(answer, bytes) else encode(answer))

        return on_describe

    async def ask(self, horizon_s: float = 10.0) -> Described:
        return await describe(self.bus, self.hub, "s0", RID, horizon_s=horizon_s)


@pytest.fixture
async def bench(nats_server: NatsServer) -> AsyncIterator[Bench]:
    bench = Bench(await Bus.connect(nats_server.url, "gateway-1"))
    await bench.hub.start()
    await bench.hub.follow("s0")
    yield bench
    await bench.hub.stop()
    await bench.bus.close()


FOUND = Described(detokenizer="d1", found=True, live=True)


async def test_an_answer_from_the_queue_group(bench: Bench) -> None:
    await bench.bus.subscribe(subjects.describe("s0"), bench.answering(FOUND), subjects.DETOKENIZER_QUEUE)
    assert await bench.ask() == FOUND
    assert bench.asked == [subjects.describe("s0")]


async def test_rule_15_after_a_timeout_straight_to_one_heard_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "ATTEMPT_TIMEOUT_S", 0.1)
    direct = subjects.describe_direct("s0", "d1")
    await bench.bus.subscribe(subjects.describe("s0"), bench.answering(None), subjects.DETOKENIZER_QUEUE)
    await bench.bus.subscribe(direct, bench.answering(FOUND))
    heartbeat = encode(DetokenizerHeartbeat(detokenizer="d1", folded=0))
    bench.bus.publish(subjects.detokenizer_heartbeat("s0"), heartbeat)
    await until(lambda: bench.hub.heard_lately("s0"), "the heartbeat")
    assert await bench.ask() == FOUND
    assert bench.asked[-1] == direct


@pytest.mark.parametrize("answer", [b"", b"\xc1", Described(detokenizer="d1", found=False, live=False)])
async def test_what_says_nothing_is_asked_again(
    bench: Bench, answer: bytes | Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Described(detokenizer="d1", found=False, live=True)
    await bench.bus.subscribe(subjects.describe("s0"), bench.answering(answer, absent))
    assert await bench.ask() == absent
    assert len(bench.asked) == 2


async def test_nobody_is_there(bench: Bench) -> None:
    with pytest.raises(RequestError) as refused:
        await bench.ask(horizon_s=0.3)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)
