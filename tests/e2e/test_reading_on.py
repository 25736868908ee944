"""Reading on, joining and ending requests over HTTP, with two gateways and tokens that cannot be repeated.

The chained fake engine draws tokens from the worker's own entropy: two readers have the same tokens only if they read
the same request.
"""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from shared import subjects
from shared.bus.client import Bus
from tests.e2e.event_stream import EventReader
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

MODEL = "smollm2-135m"
NUM_TOKENS = 200
LONG = 600  # tokens of requests that must still run when something has been done to them
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10")
OPTIONS += ("--gateways", "2", "--tokenizers", "2", "--detokenizers", "2")
STREAM = "/v1/requests/{}/stream"


def body(**extra: Any) -> dict[str, Any]:
    """A request that runs for NUM_TOKENS steps."""
    fixed = {"max_tokens": NUM_TOKENS, "min_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return {"model": MODEL, "prompt": "Once upon a time", **fixed, "stream": True, **extra}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with RunningNode(tmp_path_factory.mktemp("reading") / "node", *OPTIONS) as running:
        yield running


@pytest.fixture
async def first(node: RunningNode) -> AsyncIterator[httpx.AsyncClient]:
    """A client of gateway 1, which has a port of its own."""
    urls = (node.folder.root / "http.urls").read_text().split()
    async with httpx.AsyncClient(base_url=urls[1], timeout=LIMIT_S, trust_env=False) as client:
        yield client


@pytest.fixture
async def any_gateway(node: RunningNode) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the port that all gateways share."""
    async with httpx.AsyncClient(base_url=node.url, timeout=LIMIT_S, trust_env=False) as client:
        yield client


async def report_of(node: RunningNode, request_id: str) -> dict[str, Any]:
    """What the log holds of a request, once it has ended; the log as a whole must be clean."""
    logged: dict[str, Any] = {}

    async def look() -> bool:
        report = await asyncio.to_thread(node.verify)
        assert wrongs(report) == {}
        logged.update(report["requests"].get(request_id) or {})
        return bool(logged.get("finish_reason"))

    async with asyncio.timeout(LIMIT_S):
        while not await look():  # noqa: ASYNC110  the log has no event
            await asyncio.sleep(0.2)
    return logged


async def kill_gateway(node: RunningNode) -> None:
    """kill -9 of the gateway with a port of its own; returns once the node has started another."""
    before = node.signal("gateway-1")
    await until(lambda: node.pids().get("gateway-1", before) != before, "restart of the gateway")


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"prompt": ["one", "two"], "n": 2}])
async def test_a_killed_gateway_loses_nothing_of_a_resumable_stream(
    node: RunningNode, first: httpx.AsyncClient, any_gateway: httpx.AsyncClient, extra: dict[str, Any]
) -> None:
    asked = body(max_tokens=LONG, min_tokens=LONG, **extra)
    begun = EventReader()
    reading = asyncio.create_task(
        begun.read(first, "POST", "/v1/completions", json=asked, headers={"X-Tokenbus-Resumable": "1"})
    )
    await until(lambda: begun.num_tokens > 40 or reading.done(), "text")
    await kill_gateway(node)
    await reading
    assert begun.error and not begun.is_whole
    assert begun.num_tokens == sum(map(int, begun.last_id.split("-"))), "the id of an event is every choice's position"

    rest = begun.continued()
    await rest.read(any_gateway, "GET", STREAM.format(begun.answer_id), headers={"Last-Event-ID": begun.last_id})
    assert rest.is_whole and rest.error == ""
    assert (rest.answer_id, rest.created) == (begun.answer_id, begun.created)
    num_choices = len(begun.last_id.split("-"))
    assert {len(ids) for ids in rest.token_ids.values()} == {asked["max_tokens"]}
    assert len(rest.token_ids) == num_choices
    whole = EventReader()
    await whole.read(any_gateway, "GET", STREAM.format(begun.answer_id))
    assert (whole.token_ids, whole.texts) == (rest.token_ids, rest.texts)
    if num_choices == 1:
        logged = await report_of(node, begun.request_id)
        assert logged == logged | {"token_ids": rest.token_ids[0], "finish_reason": "length"}


async def test_an_idempotency_key_joins_the_running_request_on_another_gateway(
    node: RunningNode, first: httpx.AsyncClient, any_gateway: httpx.AsyncClient
) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex, "Authorization": "Bearer one"}
    owner, joined, late = EventReader(), EventReader(), EventReader()
    reading = asyncio.create_task(owner.read(first, "POST", "/v1/completions", json=body(), headers=headers))
    await until(lambda: owner.num_tokens > 20 or reading.done(), "text")

    other_body = await any_gateway.post("/v1/completions", json=body(prompt="something else"), headers=headers)
    assert other_body.status_code == 422
    assert other_body.json()["error"]["code"] == "idempotency_key_reused"
    assert other_body.json()["error"]["param"] == "Idempotency-Key"
    joining = asyncio.create_task(joined.read(any_gateway, "POST", "/v1/completions", json=body(), headers=headers))
    stranger = EventReader()
    await stranger.read(
        any_gateway, "POST", "/v1/completions", json=body(), headers=headers | {"Authorization": "Bearer two"}
    )
    await asyncio.gather(reading, joining)
    await late.read(any_gateway, "POST", "/v1/completions", json=body(), headers=headers)
    assert owner.is_whole and joined.is_whole and late.is_whole
    assert joined.token_ids == owner.token_ids == late.token_ids
    assert joined.texts == owner.texts
    assert (joined.answer_id, joined.created) == (owner.answer_id, owner.created)
    assert stranger.is_whole and stranger.token_ids != owner.token_ids, "another key holder's key is another key"

    at_once = await any_gateway.post("/v1/completions", json=body(stream=False), headers=headers)
    assert at_once.json()["id"] == owner.answer_id
    assert at_once.json()["choices"][0]["token_ids"] == owner.token_ids[0]
    resumed = owner.until(40)
    await resumed.read(any_gateway, "POST", "/v1/completions", json=body(), headers=headers | {"Last-Event-ID": "40"})
    assert resumed.token_ids == owner.token_ids
    logged = await report_of(node, owner.request_id)
    assert logged == logged | {"token_ids": owner.token_ids[0], "finish_reason": "length"}


async def test_a_kept_request_outlives_its_client_and_an_ordinary_one_does_not(
    node: RunningNode, first: httpx.AsyncClient, any_gateway: httpx.AsyncClient
) -> None:
    for headers, tokens in (({"X-Tokenbus-Resumable": "1"}, NUM_TOKENS), ({}, 0)):
        gone = EventReader(stop_after=20)
        asked = body() if tokens else body(max_tokens=4000, min_tokens=4000)
        await gone.read(first, "POST", "/v1/completions", json=asked, headers=headers)
        logged = await report_of(node, gone.request_id)
        if tokens:
            assert (len(logged["token_ids"]), logged["finish_reason"]) == (tokens, "length")
        else:
            assert len(logged["token_ids"]) < 4000
            assert logged["finish_reason"] == "abort"
        assert logged["token_ids"][:20] == gone.token_ids[0][:20]


async def test_delete_ends_a_request_for_all_its_readers(
    node: RunningNode, first: httpx.AsyncClient, any_gateway: httpx.AsyncClient
) -> None:
    readers = [EventReader(), EventReader()]
    asked = body(max_tokens=5000, min_tokens=5000)
    tasks = [
        asyncio.create_task(
            readers[0].read(first, "POST", "/v1/completions", json=asked, headers={"X-Tokenbus-Resumable": "1"})
        )
    ]
    await until(lambda: readers[0].num_tokens > 10 or tasks[0].done(), "text")
    tasks.append(asyncio.create_task(readers[1].read(any_gateway, "GET", STREAM.format(readers[0].request_id))))
    await until(lambda: readers[1].num_tokens > 10 or tasks[1].done(), "a second reader")
    for _ in range(2):
        ended = await any_gateway.delete(f"/v1/requests/{readers[0].answer_id}")
        assert (ended.status_code, ended.json()) == (
            200,
            {"id": readers[0].answer_id, "object": "request", "cancelled": True},
        )
    await asyncio.gather(*tasks)
    assert [reader.finish_reasons for reader in readers] == [{0: "abort"}] * 2
    assert readers[0].token_ids == readers[1].token_ids
    assert (await report_of(node, readers[0].request_id))["finish_reason"] == "abort"


async def test_ordinary_requests_of_a_killed_gateway_end_soon(node: RunningNode, first: httpx.AsyncClient) -> None:
    begun = EventReader()
    asked = body(max_tokens=8000, min_tokens=8000)
    reading = asyncio.create_task(begun.read(first, "POST", "/v1/completions", json=asked))
    await until(lambda: begun.num_tokens > 10 or reading.done(), "text")
    await kill_gateway(node)
    await reading
    logged = await report_of(node, begun.request_id)
    assert logged["finish_reason"] == "abort"
    assert len(logged["token_ids"]) < 7000, "it ran on without its reader"


async def test_openais_client_reads_kept_requests(node: RunningNode) -> None:
    asked = {"model": MODEL, "max_tokens": 30, "extra_body": {"ignore_eos": True, "min_tokens": 30}}
    asked |= {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    async with AsyncOpenAI(base_url=f"{node.url}/v1", api_key="unused", max_retries=0) as client:
        stream = await client.chat.completions.create(**asked, stream=True, extra_headers=headers)
        chunks = [chunk async for chunk in stream]
        again = await client.chat.completions.create(**asked, extra_headers=headers)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert again.choices[0].message.content == text
    assert again.id == chunks[0].id


async def test_a_paused_gateway_says_again_what_it_reads(node: RunningNode, first: httpx.AsyncClient) -> None:
    """Its requests were given up by the leader; the kept one is read on by the same client all the same."""
    begun = EventReader()
    asked = body(max_tokens=900, min_tokens=900)
    reading = asyncio.create_task(
        begun.read(first, "POST", "/v1/completions", json=asked, headers={"X-Tokenbus-Resumable": "1"})
    )
    await until(lambda: begun.num_tokens > 10 or reading.done(), "text")
    pid = node.signal("gateway-1", signal.SIGSTOP)
    await asyncio.sleep(3)  # the length of the pause, not a wait for something
    os.kill(pid, signal.SIGCONT)
    await reading
    assert begun.is_whole and begun.error == ""
    assert (await report_of(node, begun.request_id))["token_ids"] == begun.token_ids[0]


async def test_a_client_on_nats_that_asks_twice_is_read_to_once(node: RunningNode) -> None:
    """The same message again, on the same inbox: whichever tokenizer and detokenizer take it."""
    bus = await Bus.connect(node.nats, "client-1")
    try:
        answers: list[dict[str, Any]] = []
        inbox = bus.new_inbox()
        await bus.subscribe(inbox, lambda _subject, _reply, data, _headers: answers.append(json.loads(data)))
        await bus.flush()
        num_tokens = 5 * NUM_TOKENS
        params = {"max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True}
        ask = {"v": 1, "model": MODEL, "prompt": "Once", "params": params, "request_id": uuid.uuid4().hex}
        for wanted in (0, 20, 40, 60):
            await until(lambda wanted=wanted: _num_tokens(answers) >= wanted, "text")  # type: ignore[misc]
            bus.publish(subjects.INFER, json.dumps(ask).encode(), reply=inbox)
        await until(lambda: answers and answers[-1]["kind"] == "end", "the end")
        spans = [choice for answer in answers if answer["kind"] == "delta" for choice in answer["choices"]]
        begins = [index for index, span in enumerate(spans) if span["from"] == 0]
        assert len(begins) > 1, "the text came from the start again"
        last = spans[begins[-1] :]
        settled = last[0]["to"] + NUM_TOKENS  # what was on its way at the last question has come by then
        late = [span for span in last if span["from"] >= settled]
        positions = [position for span in late for position in range(span["from"], span["to"])]
        assert positions == list(range(positions[0], num_tokens)), "each token comes once"
        assert [answer["kind"] for answer in answers].count("end") == 1
        logged = await report_of(node, ask["request_id"])
        assert [token for span in late for token in span["token_ids"]] == logged["token_ids"][positions[0] :]
    finally:
        await bus.close()


def _num_tokens(answers: list[dict[str, Any]]) -> int:
    """How far the text has come."""
    ends = [choice["to"] for answer in answers if answer["kind"] == "delta" for choice in answer["choices"]]
    return max(ends, default=0)
