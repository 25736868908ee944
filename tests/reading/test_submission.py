"""What a refused sender knows of its request: it is not stored, or an unanswered attempt may have stored it."""

import pytest

from shared import subjects
from shared.bus.client import Bus
from shared.errors import RequestError, invalid, unavailable
from shared.messages.codec import encode
from shared.messages.pipeline import PROTOCOL_VERSION, GenerateRequest
from shared.reading.submission import NotStored, fix_defaults, submit
from tests.servers import NatsServer

REQUEST = fix_defaults(GenerateRequest(v=PROTOCOL_VERSION, model="tiny", prompt="hello"))
QUEUE_FULL = unavailable("The queue is full.", code="queue_full")


@pytest.mark.parametrize(
    ("refusal", "num_unanswered", "is_certain"),
    [
        (QUEUE_FULL, 0, True),
        (invalid("No.", "n"), 0, True),
        (QUEUE_FULL, 1, False),
        (invalid("No.", "n"), 1, False),
        (unavailable("The log stores nothing at present.", code="log_stuck"), 0, True),
        (unavailable("The log cannot be reached.", code="log_unavailable"), 0, False),
        (unavailable("The tokenizer was stopped."), 0, False),
    ],
)
async def test_only_who_was_refused_at_once_knows_that_nothing_is_stored(
    nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    refusal: RequestError,
    num_unanswered: int,
    is_certain: bool,
) -> None:
    monkeypatch.setattr("shared.reading.submission.ATTEMPT_TIMEOUT_S", 0.1)
    bus, tokenizer = [await Bus.connect(nats_server.url, f"test-{number}") for number in (1, 2)]
    taken = []

    def on_infer(subject: str, reply: str, data: bytes, headers: bytes) -> None:
        taken.append(data)
        if len(taken) > num_unanswered:
            tokenizer.publish(reply, encode(refusal.refused()))

    await tokenizer.subscribe(subjects.INFER, on_infer)
    await tokenizer.flush()
    with pytest.raises(RequestError) as raised:
        await submit(bus, REQUEST)
    assert (raised.value.status, raised.value.code) == (refusal.status, refusal.code)
    assert isinstance(raised.value, NotStored) is is_certain
    assert taken == [encode(REQUEST)] * (num_unanswered + 1)
    await bus.close()
    await tokenizer.close()


async def test_nobody_listens(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.reading.submission.NO_TOKENIZER_LIMIT_S", 0.1)
    bus = await Bus.connect(nats_server.url, "test-1")
    with pytest.raises(NotStored):
        await submit(bus, REQUEST)
    await bus.close()
