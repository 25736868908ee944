"""The native client against a scripted pipeline on a real bus."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.client import AcceptedEvent, EndEvent, TextEvent, TokenbusClient
from shared.errors import RequestError, unavailable
from tests.gateway.stand_in import Script, StandIn, text_of
from tests.servers import NatsServer
from tests.waiting import until


@pytest.fixture
async def stand_in(nats_server: NatsServer) -> AsyncIterator[StandIn]:
    stand_in = await StandIn.start(nats_server.url)
    yield stand_in
    await stand_in.stop()


@pytest.fixture
async def client(nats_server: NatsServer, stand_in: StandIn) -> AsyncIterator[TokenbusClient]:
    async with await TokenbusClient.connect(nats_server.url) as client:
        yield client


async def test_generate(client: TokenbusClient, stand_in: StandIn) -> None:
    generation = await client.generate(prompt="hello", max_tokens=4, n=2)
    assert [choice.text for choice in generation.choices] == [text_of(0, 4)] * 2
    assert generation.choices[0].token_ids == [100, 101, 102, 103]
    assert (generation.choices[1].index, generation.choices[1].finish_reason) == (1, "length")
    assert (generation.num_prompt_tokens, generation.num_completion_tokens) == (3, 8)
    request = stand_in.requests[0]
    assert (request.model, request.request_id) == ("tiny", generation.request_id), "the first model is the default"
    assert request.params == {"max_tokens": 4, "n": 2}
    assert stand_in.cancels == []


async def test_stream(client: TokenbusClient) -> None:
    events = [event async for event in client.stream(messages=[{"role": "user", "content": "hi"}], model="tiny")]
    accepted, *texts, end = events
    assert isinstance(accepted, AcceptedEvent) and accepted.num_prompt_tokens == 3
    assert [(event.start, event.stop, event.text) for event in texts if isinstance(event, TextEvent)] == [
        (index, index + 1, f" w{index}") for index in range(4)
    ]
    assert end == EndEvent(choice=0, finish_reason="length", stop_reason=None, num_tokens=4)


async def test_leaving_a_stream_cancels_it(client: TokenbusClient, stand_in: StandIn) -> None:
    stand_in.script = Script(num_tokens=6, holds_at=2)
    async with contextlib.aclosing(client.stream(prompt="hello", model="tiny")) as events:
        async for event in events:
            if isinstance(event, TextEvent):
                break
    await until(lambda: stand_in.cancels == [stand_in.requests[0].request_id])
    await until(lambda: stand_in.detaches)


async def test_attach_goes_on_elsewhere(client: TokenbusClient, stand_in: StandIn, nats_server: NatsServer) -> None:
    """Another client reads the same request from a position on; leaving it cancels nothing."""
    stand_in.script = Script(num_tokens=6, holds_at=4)
    reading = asyncio.ensure_future(client.generate(prompt="hello", model="tiny"))
    await until(lambda: stand_in.attaches)
    request_id = stand_in.requests[0].request_id or ""
    async with await TokenbusClient.connect(nats_server.url) as other:
        texts = []
        async with contextlib.aclosing(other.attach(request_id, [2])) as events:
            async for event in events:
                if isinstance(event, TextEvent):
                    texts.append(event.text)
                if len(texts) == 2:
                    break
        assert texts == [" w2", " w3"]
    stand_in.release()
    assert (await reading).choices[0].text == text_of(0, 6)
    assert stand_in.cancels == []


async def test_cancel_is_answered(client: TokenbusClient, stand_in: StandIn) -> None:
    await client.cancel("0" * 32)
    assert stand_in.cancels == ["0" * 32]


async def test_cancel_without_a_tokenizer(client: TokenbusClient, stand_in: StandIn) -> None:
    await stand_in.deafen()
    with pytest.raises(RequestError) as caught:
        await client.cancel("0" * 32, timeout_s=0.2)
    assert caught.value.status == 503


async def test_survives_a_lost_detokenizer(client: TokenbusClient, stand_in: StandIn) -> None:
    stand_in.script = Script(num_tokens=6, holds_at=3)
    reading = asyncio.ensure_future(client.generate(prompt="hello", model="tiny"))
    await until(lambda: stand_in.attaches)
    stand_in.restart_detokenizer("detokenizer-2")
    stand_in.let_go()
    assert (await reading).choices[0].token_ids == list(range(100, 106))


async def test_rule_12_a_lost_request_is_sent_again(client: TokenbusClient, stand_in: StandIn) -> None:
    stand_in.ignored_infers = 1
    assert (await client.generate(prompt="hello", model="tiny")).choices[0].text == text_of(0, 4)
    first, second = stand_in.requests
    assert first == second


@pytest.mark.parametrize(
    ("params", "param"), [({"temperature": -1}, "temperature"), ({"max_tokens": 0}, "max_tokens"), ({"n": 0}, "n")]
)
async def test_bad_parameters_stay_here(
    params: dict[str, Any], param: str, client: TokenbusClient, stand_in: StandIn
) -> None:
    with pytest.raises(RequestError) as caught:
        await client.generate(prompt="hello", model="tiny", **params)
    assert caught.value.param == param
    assert stand_in.requests == []


async def test_refusals_and_failures(client: TokenbusClient, stand_in: StandIn) -> None:
    stand_in.script = Script(refusal=unavailable("The queue is full."))
    with pytest.raises(RequestError) as caught:
        await client.generate(prompt="hello", model="tiny")
    assert caught.value.status == 503
    stand_in.script = Script(num_tokens=2, reason="error")
    with pytest.raises(RequestError) as caught:
        await client.generate(prompt="hello", model="tiny")
    assert caught.value.status == 500


async def test_nobody_there(client: TokenbusClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.reading.submission.NO_TOKENIZER_LIMIT_S", 0.2)
    monkeypatch.setattr("shared.client.CANCEL_TIMEOUT_S", 0.2)
    stand_in.beats.clear()
    await stand_in.deafen()
    with pytest.raises(RequestError, match="is Tokenbus running"):
        await client.models(timeout_s=0.2)
    with pytest.raises(RequestError) as caught:
        await client.generate(prompt="hello", model="tiny")
    assert caught.value.status == 503


async def test_the_deadline_passes_without_a_word(
    client: TokenbusClient, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.client.DEADLINE_GRACE_S", 0.1)
    stand_in.script = Script(holds_at=1)
    with pytest.raises(RequestError) as caught:
        await client.generate(prompt="hello", model="tiny", deadline_s=0.2)
    assert caught.value.status == 504
    await until(lambda: stand_in.cancels)
