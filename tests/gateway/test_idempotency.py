"""A request with an idempotency key is one request, however often and wherever it is sent (row 51)."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.gateway.core.request_headers import keyed_request_id
from shared.errors import RequestError, unavailable
from tests.gateway.conftest import Running
from tests.gateway.stand_in import Script, text_of
from tests.gateway.test_reading_again import ASK, Reader, second
from tests.waiting import until

__all__ = ["second"]

KEY = {"Idempotency-Key": "order-66"}
HOLDER = {"Authorization": "Bearer one"}


async def ask(running: Running, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {**ASK, "stream": False, **fields}
    return await running.http.post("/v1/completions", json=body, headers=KEY if headers is None else headers)


async def test_asked_twice_it_is_sent_once(running: Running, second: Running) -> None:
    first = await ask(running)
    again = await ask(second)
    assert again.json() == first.json()
    (request,) = running.stand_in.requests
    assert (request.request_id, request.keep_s) == (keyed_request_id("", "order-66"), 60)
    streamed = Reader.asking(second, KEY)
    await streamed.task
    assert (streamed.text, streamed.answer_id) == (first.json()["choices"][0]["text"], first.json()["id"])
    assert streamed.created == first.json()["created"]
    assert running.stand_in.readers == [(request.request_id, second.host.name, True)] * 2


async def test_asked_at_the_same_time_both_read_the_one_that_is_logged(running: Running, second: Running) -> None:
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    readers = [Reader.asking(gateway, KEY, n=2) for gateway in (running, second, running, second)]
    for reader in readers:
        await reader.has(3)
    assert len(running.stand_in.logged) == 1
    running.stand_in.release()
    await asyncio.gather(*(reader.task for reader in readers))
    assert {reader.answer_id for reader in readers} == {readers[0].answer_id}
    assert [reader.texts for reader in readers] == [{0: text_of(0, 6), 1: text_of(0, 6)}] * 4


async def test_the_key_of_another_holder_is_another_key(running: Running) -> None:
    ids = [(await ask(running, KEY | extra)).json()["id"] for extra in ({}, HOLDER, HOLDER)]
    assert ids[0] != ids[1] == ids[2]


@pytest.mark.parametrize("change", [{"prompt": "else"}, {"temperature": 0.5}, {"n": 2}, {"prompt": ["hello", "x"]}])
async def test_row_51_another_body(running: Running, change: dict[str, Any]) -> None:
    running.stand_in.script = Script(num_tokens=6, holds_at=3)
    reader = Reader.asking(running, KEY)
    await reader.has(3)
    answer = await ask(running, **change)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "idempotency_key_reused",
        "Idempotency-Key",
    )
    running.stand_in.release()
    await reader.task
    assert reader.is_whole and reader.text == text_of(0, 6)
    assert (running.stand_in.ends, running.stand_in.readers, len(running.stand_in.requests)) == ([], [], 1)


async def test_a_chat_is_another_body(running: Running) -> None:
    await ask(running)
    messages = [{"role": "user", "content": "hello"}]
    answer = await running.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages}, headers=KEY)
    assert answer.status_code == 422


async def test_a_key_whose_answer_is_no_longer_kept(running: Running) -> None:
    running.stand_in.forgotten.add(keyed_request_id("", "order-66"))
    answer = await ask(running)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_key_expired")
    assert running.stand_in.requests == []


async def test_a_stream_is_resumed_by_the_same_request(running: Running, second: Running) -> None:
    whole = Reader.asking(running, KEY)
    await whole.task
    rest = Reader.asking(second, KEY | {"Last-Event-ID": "2"})
    await rest.task
    assert (rest.text, rest.answer_id) == (text_of(2, 4), whole.answer_id)


@pytest.mark.parametrize(
    ("last_id", "fields"), [("2", {"stream": False}), ("2-2", {}), ("2", {"n": 2}), ("x", {}), ("", {})]
)
async def test_a_position_that_does_not_fit(running: Running, last_id: str, fields: dict[str, Any]) -> None:
    headers = KEY | {"Last-Event-ID": last_id}
    answer = await running.http.post("/v1/completions", json={**ASK, **fields}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


async def test_what_is_not_there_is_not_begun_in_its_middle(running: Running) -> None:
    answer = await running.http.post("/v1/completions", json=ASK, headers=KEY | {"Last-Event-ID": "2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    assert running.stand_in.requests == []


async def test_what_runs_can_be_joined_while_nothing_new_is_taken(running: Running) -> None:
    first = await ask(running)
    running.stand_in.is_log_full = True
    await until(lambda: running.gateway.pipeline.readiness.is_log_full)
    assert (await ask(running)).json() == first.json()
    refused = await ask(running, {"Idempotency-Key": "another"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "log_full")
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("status", [429, 503])
async def test_every_refusal_that_passes_says_when_to_come_back(running: Running, status: int) -> None:
    running.stand_in.script = Script(refusal=RequestError("Too much.", status=status))
    for headers in (KEY, {}):
        answer = await ask(running, headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")


async def test_a_client_that_goes_before_the_acceptance_finds_its_answer_later(running: Running) -> None:
    running.stand_in.ignored_infers = 1
    reader = Reader.asking(running, KEY)
    await until(lambda: running.stand_in.requests)
    await reader.leave()
    request_id = keyed_request_id("", "order-66")
    await until(lambda: running.stand_in.readers == [(request_id, running.host.name, False)], "left once accepted")
    assert len(running.stand_in.requests) == 2, "sent until it was accepted"
    assert (await ask(running)).json()["choices"][0]["text"] == text_of(0, 4)
    assert (running.stand_in.ends, len(running.stand_in.requests)) == ([], 2)


async def test_a_client_that_goes_between_acceptance_and_text_leaves_it_to_its_time(running: Running) -> None:
    """No detokenizer has told of it yet when the client goes: nobody here reads it, and the log must know."""
    running.stand_in.descriptions_left = 1
    reader = Reader.asking(running, KEY)
    await until(lambda: running.stand_in.logged)
    await reader.leave()
    request_id = keyed_request_id("", "order-66")
    await until(lambda: running.stand_in.readers == [(request_id, running.host.name, False)], "left")
    assert running.stand_in.ends == []


async def test_one_prompt_of_several_is_refused_and_the_others_are_left_to_their_time(running: Running) -> None:
    running.stand_in.refused_prompts["b"] = unavailable("The queue is full.", code="queue_full")
    answer = await ask(running, prompt=["a", "b", "c"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    stored = {(request_id, running.host.name, False) for request_id in running.stand_in.logged}
    await until(lambda: set(running.stand_in.readers) == stored, "every prompt that was stored is left")
    assert len(stored) == 2
    running.stand_in.refused_prompts.clear()
    assert (await ask(running, prompt=["a", "b", "c"])).status_code == 200


async def test_a_request_under_the_key_with_other_choices_is_another_body(running: Running) -> None:
    """Whoever may ask over NATS may log anything under an id; more choices than asked for must not end the gateway."""
    await ask(running)
    ((request_id, request),) = running.stand_in.logged.items()
    running.stand_in.logged[request_id] = msgspec.structs.replace(request, params={**request.params, "n": 3})
    assert (await ask(running)).status_code == 422


async def test_a_prompt_that_is_missing_is_sent_by_whoever_comes_next(running: Running) -> None:
    """Its gateway died between two prompts."""
    whole = await ask(running, prompt=["a", "b"])
    lost = running.stand_in.requests[1].request_id or ""
    del running.stand_in.logged[lost]
    again = await ask(running, prompt=["a", "b"])
    assert again.json() == whole.json()
    assert [request.request_id for request in running.stand_in.requests].count(lost) == 2


async def test_openais_client_retries_with_a_key(running: Running) -> None:
    """A retry after a lost answer gets the answer of the first try."""
    async with running.openai() as client:
        answers = [await client.completions.create(model="tiny", prompt="hello", extra_headers=KEY) for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(running.stand_in.requests) == 1


async def test_metrics_count_the_tokens_of_a_request_once(running: Running) -> None:
    for _ in range(3):
        await ask(running)
    assert running.value("vllm:generation_tokens_total", model_name="tiny") == 4
    assert running.value("vllm:prompt_tokens_total", model_name="tiny") == 3
