"""Completions and chats as OpenAI's own client and as plain HTTP see them."""

import json
from typing import Any

import pytest

from tests.gateway.conftest import Running
from tests.gateway.stand_in import Script, text_of

HEX = set("0123456789abcdef")


def events_of(body: str) -> list[tuple[str | None, Any]]:
    """(id, data) of each event; data is decoded unless it is [DONE]."""
    events = []
    for block in body.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        events.append((fields.get("id"), data if data == "[DONE]" else json.loads(data)))
    return events


async def test_completion(running: Running) -> None:
    answer = await running.complete(max_tokens=4)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["id"].startswith("cmpl-")
    assert len(body["id"]) == 37 and set(body["id"][5:]) <= HEX
    assert (body["object"], body["model"]) == ("text_completion", "tiny")
    assert body["choices"] == [
        {"index": 0, "text": text_of(0, 4), "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
    }
    request = running.stand_in.requests[0]
    assert body["id"] == f"cmpl-{request.request_id}"
    assert (request.prompt, request.messages, request.params, request.attach) == (
        "hello",
        None,
        {"max_tokens": 4},
        False,
    )
    assert request.seed_default is not None and request.created_s is not None


async def test_chat(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=2, reason="eos")
    body = (await running.chat()).json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": " w0 w1", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert running.stand_in.requests[0].messages == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [("eos", "stop"), ("stop_token", "stop"), ("stop_string", "stop"), ("length", "length"), ("cancel", "abort")],
)
async def test_finish_reasons(reason: Any, finish_reason: str, running: Running) -> None:
    running.stand_in.script = Script(reason=reason)
    assert (await running.complete()).json()["choices"][0]["finish_reason"] == finish_reason
    last = events_of((await running.complete(stream=True)).text)[-2]
    assert last[1]["choices"][0]["finish_reason"] == finish_reason


async def test_stream_of_a_completion(running: Running) -> None:
    answer = await running.complete(stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, usage, done = events_of(answer.text)
    assert [id_ for id_, _ in events] == ["1", "2", "3", "4"]
    assert [event["choices"][0]["text"] for _, event in events] == [" w0", " w1", " w2", " w3"]
    assert [event["choices"][0]["finish_reason"] for _, event in events] == [None, None, None, "length"]
    assert all(event["usage"] is None for _, event in events)
    assert usage[1]["choices"] == []
    assert usage[1]["usage"]["completion_tokens"] == 4
    assert done[1] == "[DONE]"
    assert len({event["id"] for _, event in [*events, usage]}) == 1


async def test_stream_of_a_chat(running: Running) -> None:
    first, *events, done = events_of((await running.chat(stream=True)).text)
    assert first[1]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first[1]["object"] == "chat.completion.chunk"
    assert "".join(event["choices"][0]["delta"]["content"] for _, event in events) == text_of(0, 4)
    assert "usage" not in events[0][1]
    assert done[1] == "[DONE]"


async def test_continuous_usage(running: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, _, _ = events_of((await running.complete(stream=True, stream_options=options)).text)
    assert [event["usage"]["completion_tokens"] for _, event in events] == [1, 2, 3, 4]


async def test_several_choices_and_prompts(running: Running) -> None:
    body = (await running.complete(prompt=["a", "b"], n=2)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert all(choice["text"] == text_of(0, 4) for choice in body["choices"])
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 16
    requests = running.stand_in.requests
    assert sorted(str(request.prompt) for request in requests) == ["a", "b"]
    assert len({request.request_id for request in requests}) == 2
    assert len({request.seed_default for request in requests}) == 2


async def test_stream_of_several_choices(running: Running) -> None:
    events = events_of((await running.complete(prompt=["a", "b"], n=2, stream=True)).text)
    texts = dict.fromkeys(range(4), "")
    for _, event in events[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert set(texts.values()) == {text_of(0, 4)}
    assert events[-2][0] == "4-4-4-4"


async def test_token_ids(running: Running) -> None:
    body = (await running.complete(return_token_ids=True)).json()
    assert body["choices"][0]["token_ids"] == [100, 101, 102, 103]
    assert body["choices"][0]["prompt_token_ids"] == [7, 8, 9]
    events = events_of((await running.complete(return_token_ids=True, stream=True)).text)[:-1]
    assert [event["choices"][0]["token_ids"] for _, event in events] == [[100], [101], [102], [103]]
    assert [event["choices"][0].get("prompt_token_ids") for _, event in events] == [[7, 8, 9], None, None, None]


async def test_token_ids_of_a_chat(running: Running) -> None:
    body = (await running.chat(return_token_ids=True)).json()
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ([7, 8, 9], [100, 101, 102, 103])
    first, second, *_ = events_of((await running.chat(return_token_ids=True, stream=True)).text)
    assert first[1]["prompt_token_ids"] == [7, 8, 9]
    assert second[1]["choices"][0]["token_ids"] == [100]


async def test_logprobs_of_a_completion(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=2)
    expected = {
        "text_offset": [0, 3],
        "token_logprobs": [-0.5, -0.5],
        "tokens": [" w0", " w1"],
        "top_logprobs": [{" x": -1.5, " w0": -0.5}, {" x": -1.5, " w1": -0.5}],
    }
    assert (await running.complete(logprobs=1)).json()["choices"][0]["logprobs"] == expected
    event = events_of((await running.complete(logprobs=1, stream=True)).text)[1][1]
    assert event["choices"][0]["logprobs"]["tokens"] == [" w1"]


async def test_logprobs_of_a_chat(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=1)
    rows = (await running.chat(logprobs=True, top_logprobs=1)).json()["choices"][0]["logprobs"]["content"]
    assert rows == [
        {
            "token": " w0",
            "logprob": -0.5,
            "bytes": list(b" w0"),
            "top_logprobs": [{"token": " x", "logprob": -1.5, "bytes": list(b" x")}],
        }
    ]


async def test_texts_that_need_escaping(running: Running) -> None:
    awkward = ['"', "\\\n\r\t", "\x00\x1f", "\u2028", "日本語🙂", "</script>"]
    running.stand_in.script = Script(num_tokens=len(awkward), text=lambda start, stop: "".join(awkward[start:stop]))
    body = (await running.complete(stream=True)).text
    assert "".join(event["choices"][0]["text"] for _, event in events_of(body)[:-1]) == "".join(awkward)


async def test_deltas_of_several_tokens_and_of_none(running: Running) -> None:
    running.stand_in.script = Script(num_tokens=4, tokens_per_delta=2)
    assert [id_ for id_, _ in events_of((await running.complete(stream=True)).text)[:-1]] == ["2", "4"]
    running.stand_in.script = Script(num_tokens=0, reason="cancel")
    assert (await running.complete()).json()["choices"][0]["text"] == ""


async def test_the_official_client(running: Running) -> None:
    async with running.openai() as client:
        models = [model.id async for model in client.models.list()]
        assert models == ["tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"
        completion = await client.completions.create(model="tiny", prompt="hello", max_tokens=4)
        assert completion.choices[0].text == text_of(0, 4)
        chat = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], logprobs=True
        )
        assert chat.choices[0].message.content == text_of(0, 4)
        assert chat.choices[0].logprobs is not None
        parts = await client.completions.create(model="tiny", prompt="hello", stream=True)
        assert "".join([part.choices[0].text async for part in parts]) == text_of(0, 4)
        pieces = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [piece async for piece in pieces]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text_of(0, 4)
        assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 7


async def test_other_paths(running: Running) -> None:
    model = (await running.http.get("/v1/models/tiny")).json()
    assert model == {
        "id": "tiny",
        "object": "model",
        "created": 1700000000,
        "owned_by": "tokenbus",
        "root": "tiny-root",
        "parent": None,
        "max_model_len": 1000,
    }
    assert set((await running.http.get("/version")).json()) == {"version"}
    paths = (await running.http.get("/openapi.json")).json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{model}"} < set(paths)
    for path in ("/version", "/live", "/ready", "/health", "/metrics"):
        assert path in paths and (await running.http.get(path)).status_code == 200
    assert "openapi.json" in (await running.http.get("/docs")).text
    assert (await running.http.head("/ready")).status_code == 200
    assert (await running.http.get("/metrics")).status_code == 200


async def test_metrics(running: Running) -> None:
    await running.complete(nonsense=1, **{"max_tokens": 4})
    await running.complete(stream=True)
    await running.complete(max_tokens=0)
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_time_per_output_token_seconds"):
        assert running.value(f"vllm:{name}_count", model_name="tiny") == 2, name
    assert running.value("vllm:inter_token_latency_seconds_count", model_name="tiny") == 6
    assert running.value("vllm:prompt_tokens_total", model_name="tiny") == 6
    assert running.value("vllm:generation_tokens_total", model_name="tiny") == 8
    assert running.value("vllm:request_success_total", model_name="tiny", finished_reason="length") == 2
    assert running.value("tokenbus_unknown_request_fields_total") == 1
    assert running.value("tokenbus_http_responses_total", status="200") == 2
    assert running.value("tokenbus_http_responses_total", status="400") == 1
