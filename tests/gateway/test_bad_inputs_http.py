"""The rows of bad-inputs.md that concern the gateway's endpoints, by number: each gets a clear error that names the
parameter, and the gateway serves on. Rows 6 to 9 are in test_http_limits.py; 13, 47, 49 and 50 in test_failures.py."""

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.gateway.conftest import Running, start_gateway, stop_gateway
from tests.gateway.stand_in import StandIn
from tests.servers import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"content-type": "application/json"}
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
OMIT = object()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One gateway for all rows: what one bad input breaks, the next one shows."""
    folder: Path = tmp_path_factory.mktemp("nats")
    with NatsServer(folder) as server:
        stand_in = await StandIn.start(server.url)
        running = await start_gateway(server.url, stand_in)
        yield running
        await stop_gateway(running)
        await stand_in.stop()


async def check(answer: httpx.Response, status: int, param: str | None, gateway: Running) -> None:
    """The status, the four keys, the parameter; and the next good request is served."""
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["x-request-id"]
    if status != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["message"], str) and error["message"]
        if param is not None:
            assert str(error["param"]).startswith(param), error
    assert (await gateway.complete()).status_code == 200


def body_of(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**base, **changes}.items() if value is not OMIT}


RAW = {
    "row 1, empty": (b"", JSON, 400),
    "row 1, an array": (b"[]", JSON, 400),
    "row 1, a string": (b'"x"', JSON, 400),
    "row 1, null": (b"null", JSON, 400),
    "row 2, malformed": (b'{"model":', JSON, 400),
    "row 2, trailing bytes": (json.dumps(COMPLETION).encode() + b"x", JSON, 400),
    "row 2, byte order mark": (b"\xef\xbb\xbf" + json.dumps(COMPLETION).encode(), JSON, 400),
    "row 2, UTF-16": (json.dumps(COMPLETION).encode("utf-16"), JSON, 400),
    "row 2, UTF-16 without a mark": (json.dumps(COMPLETION).encode("utf-16-le"), JSON, 400),
    "row 2, invalid UTF-8": (b'{"model":"tiny","prompt":"\xff\xfe"}', JSON, 400),
    "row 3, depth 100k of arrays": (b'{"prompt":' + b"[" * 100_000, JSON, 400),
    "row 3, depth 100k of objects": (b'{"a":' * 100_000, JSON, 400),
    "row 3, depth 100k, closed": (b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400),
    "row 4, NaN": (b'{"model":"tiny","prompt":"a","temperature":NaN}', JSON, 400),
    "row 4, Infinity": (b'{"model":"tiny","prompt":"a","temperature":Infinity}', JSON, 400),
    "row 4, 1e999": (b'{"model":"tiny","prompt":"a","temperature":1e999}', JSON, 400),
    "row 4, -1e999": (b'{"model":"tiny","prompt":"a","temperature":-1e999}', JSON, 400),
    "row 5, no content type": (json.dumps(COMPLETION).encode(), {}, 415),
    "row 5, text": (json.dumps(COMPLETION).encode(), {"content-type": "text/plain"}, 415),
    "row 5, form": (b"model=tiny", {"content-type": "application/x-www-form-urlencoded"}, 415),
    "row 5, JSON in Latin-1": (
        json.dumps(COMPLETION).encode(),
        {"content-type": "application/json; charset=latin-1"},
        415,
    ),
    "row 5, unknown encoding": (json.dumps(COMPLETION).encode(), {**JSON, "content-encoding": "br"}, 415),
    "row 5, two encodings": (json.dumps(COMPLETION).encode(), {**JSON, "content-encoding": "gzip, gzip"}, 415),
    "row 6, gzip that is none": (b"hello", {**JSON, "content-encoding": "gzip"}, 400),
    "row 6, gzip cut short": (gzip.compress(b"{}" * 100)[:-10], {**JSON, "content-encoding": "gzip"}, 400),
    "row 17, lone surrogate": (b'{"model":"tiny","prompt":"\\ud800"}', JSON, 400),
    "a charset in capitals is fine": (
        json.dumps(COMPLETION).encode(),
        {"content-type": "Application/JSON; charset=UTF-8"},
        200,
    ),
}


@pytest.mark.parametrize(("data", "headers", "status"), RAW.values(), ids=RAW.keys())
async def test_bodies(data: bytes, headers: dict[str, str], status: int, gateway: Running) -> None:
    answer = await gateway.http.post("/v1/completions", content=data, headers=headers)
    await check(answer, status, None, gateway)


COMPLETIONS: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "row 10, no model": ({"model": OMIT}, 400, "model"),
    "row 10, model null": ({"model": None}, 400, "model"),
    "row 10, model a number": ({"model": 5}, 400, "model"),
    "row 11, unknown model": ({"model": "nope"}, 404, "model"),
    "row 12, model ../x": ({"model": "../x"}, 404, "model"),
    "row 12, model with NUL": ({"model": "tiny\x00"}, 404, "model"),
    "row 12, model of 10 KB": ({"model": "m" * 10_240}, 404, "model"),
    "row 12, empty model": ({"model": ""}, 404, "model"),
    "row 17, NUL in the prompt": ({"prompt": "a\x00b"}, 200, None),
    "row 17, right to left": ({"prompt": "\u202eabc\u200d"}, 200, None),
    "row 17, a million combining marks": ({"prompt": "e" + "\u0301" * 1_000_000}, 200, None),
    "row 18, special tokens as text": ({"prompt": "<|im_start|>system<|endoftext|></s>"}, 200, None),
    "row 19, ids beyond the context": ({"prompt": [1] * 1000}, 400, "prompt"),
    "row 21, no prompt": ({"prompt": OMIT}, 400, "prompt"),
    "row 21, prompt null": ({"prompt": None}, 400, "prompt"),
    "row 21, empty prompt": ({"prompt": ""}, 400, "prompt"),
    "row 21, no prompts": ({"prompt": []}, 400, "prompt"),
    "row 21, an empty prompt among prompts": ({"prompt": [[]]}, 400, "prompt"),
    "row 21, ids and strings mixed": ({"prompt": [1, "a"]}, 400, "prompt"),
    "row 21, strings and ids mixed": ({"prompt": ["a", [1]]}, 400, "prompt"),
    "row 21, 10k prompts": ({"prompt": ["a"] * 10_000}, 400, "prompt"),
    "row 21, an object": ({"prompt": {"text": "a"}}, 400, "prompt"),
    "row 22, id -1": ({"prompt": [-1]}, 400, "prompt"),
    "row 22, id of the vocabulary's size": ({"prompt": [500]}, 400, "prompt"),
    "row 22, id 2^31": ({"prompt": [2**31]}, 400, "prompt"),
    "row 22, id 2^64": ({"prompt": [2**64]}, 400, "prompt"),
    "row 22, id true": ({"prompt": [1, True]}, 400, "prompt"),
    "row 23, max_tokens -1": ({"max_tokens": -1}, 400, "max_tokens"),
    "row 23, max_tokens 1.5": ({"max_tokens": 1.5}, 400, "max_tokens"),
    "row 23, max_tokens a string": ({"max_tokens": "5"}, 400, "max_tokens"),
    "row 23, max_tokens true": ({"max_tokens": True}, 400, "max_tokens"),
    "row 23, max_tokens 10^23": ({"max_tokens": 10**23}, 400, "max_tokens"),
    "row 25, n 0": ({"n": 0}, 400, "n"),
    "row 25, n 129": ({"n": 129}, 400, "n"),
    "row 25, n 10^9": ({"n": 10**9}, 400, "n"),
    "row 25, too many choices over all prompts": ({"n": 65, "prompt": ["a", "b"]}, 400, "n"),
    "row 25, best_of below n": ({"n": 3, "best_of": 2}, 400, "best_of"),
    "row 25, best_of 10^9": ({"best_of": 10**9}, 400, "best_of"),
    "row 26, temperature -0.1": ({"temperature": -0.1}, 400, "temperature"),
    "row 26, temperature 2.1": ({"temperature": 2.1}, 400, "temperature"),
    "row 26, top_p 0": ({"top_p": 0}, 400, "top_p"),
    "row 26, top_p -1": ({"top_p": -1}, 400, "top_p"),
    "row 26, top_p 1.1": ({"top_p": 1.1}, 400, "top_p"),
    "row 26, top_k -2": ({"top_k": -2}, 400, "top_k"),
    "row 26, min_p 2": ({"min_p": 2}, 400, "min_p"),
    "row 26, presence_penalty 2.1": ({"presence_penalty": 2.1}, 400, "presence_penalty"),
    "row 26, frequency_penalty -2.1": ({"frequency_penalty": -2.1}, 400, "frequency_penalty"),
    "row 26, repetition_penalty 0": ({"repetition_penalty": 0}, 400, "repetition_penalty"),
    "row 27, a denormal temperature": ({"temperature": 1e-40}, 200, None),
    "row 28, logprobs 6": ({"logprobs": 6}, 400, "logprobs"),
    "row 29, logit_bias on -1": ({"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    "row 29, logit_bias beyond the vocabulary": ({"logit_bias": {"500": 1}}, 400, "logit_bias"),
    "row 29, logit_bias on x": ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    "row 29, a bias of 101": ({"logit_bias": {"1": 101}}, 400, "logit_bias"),
    "row 29, a bias of -101": ({"logit_bias": {"1": -101}}, 400, "logit_bias"),
    "row 30, stop_token_ids beyond the vocabulary": ({"stop_token_ids": [500]}, 400, "stop_token_ids"),
    "row 30, stop_token_ids 2^31": ({"stop_token_ids": [2**31]}, 400, "stop_token_ids"),
    "row 30, allowed_token_ids -1": ({"allowed_token_ids": [-1]}, 400, "allowed_token_ids"),
    "row 30, bad_words of numbers": ({"bad_words": [1]}, 400, "bad_words"),
    "row 31, five stops": ({"stop": ["a"] * 5}, 400, "stop"),
    "row 31, an empty stop": ({"stop": ""}, 400, "stop"),
    "row 31, a stop of 1 MB": ({"stop": "a" * 2**20}, 400, "stop"),
    "row 32, seed 2^63": ({"seed": 2**63}, 400, "seed"),
    "row 32, min_tokens above max_tokens": ({"min_tokens": 5, "max_tokens": 4}, 400, "min_tokens"),
    "row 33, stream yes": ({"stream": "yes"}, 400, "stream"),
    "row 33, stream_options without stream": ({"stream_options": {}}, 400, "stream_options"),
    "row 36, a JSON schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://169.254.169.254/"}}}},
        400,
        "response_format",
    ),
    "row 37, a catastrophic regex": ({"guided_regex": "(a+)+$"}, 400, "guided_regex"),
    "row 38, two modes at once": (
        {"response_format": {"type": "json_object"}, "guided_json": {}},
        400,
        "response_format",
    ),
    "row 40, empty cache_salt": ({"cache_salt": ""}, 400, "cache_salt"),
    "row 40, a cache_salt of 1 MB": ({"cache_salt": "s" * 2**20}, 400, "cache_salt"),
    "row 41, an unknown field": ({"nonsense": {"deep": [1, 2**80]}}, 200, None),
    "row 41, an ignored field with a huge number": ({"metadata": {"a": 2**80}}, 200, None),
}


@pytest.mark.parametrize(("changes", "status", "param"), COMPLETIONS.values(), ids=COMPLETIONS.keys())
async def test_completions(changes: dict[str, Any], status: int, param: str | None, gateway: Running) -> None:
    num_sent = len(gateway.stand_in.requests)
    answer = await gateway.http.post("/v1/completions", json=body_of(COMPLETION, changes))
    if status != 200:
        assert len(gateway.stand_in.requests) == num_sent, "a bad request left the gateway"
    await check(answer, status, param, gateway)


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [fields]}


def image(url: str) -> dict[str, Any]:
    return message(role="user", content=[{"type": "image_url", "image_url": {"url": url}}])


CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": 1000000000000000000000000000}'},
}
TOOL = {"type": "function", "function": {"name": "f"}}

CHATS: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "row 14, no messages": ({"messages": OMIT}, 400, "messages"),
    "row 14, empty messages": ({"messages": []}, 400, "messages"),
    "row 14, messages a string": ({"messages": "hi"}, 400, "messages"),
    "row 14, unknown role": (message(role="robot", content="hi"), 400, "messages[0].role"),
    "row 14, null content": (message(role="user", content=None), 400, "messages[0].content"),
    "row 14, no content": (message(role="user"), 400, "messages[0].content"),
    "row 14, 100k messages": ({"messages": [{"role": "user", "content": "a"}] * 100_000}, 400, "messages"),
    "row 15, orphan tool_call_id": (
        message(role="tool", content="x", tool_call_id="call_9"),
        400,
        "messages[0].tool_call_id",
    ),
    "row 16, image of the metadata service": (image("http://169.254.169.254/latest"), 400, "messages[0].content[0]"),
    "row 16, image in a file": (image("file:///etc/passwd"), 400, "messages[0].content[0]"),
    "row 23, max_tokens 0": ({"max_tokens": 0}, 400, "max_tokens"),
    "row 24, both limits, different": ({"max_tokens": 4, "max_completion_tokens": 5}, 400, "max_completion_tokens"),
    "row 28, top_logprobs 21": ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    "row 28, top_logprobs without logprobs": ({"top_logprobs": 2}, 400, "top_logprobs"),
    "row 28, logprobs a number": ({"logprobs": 5}, 400, "logprobs"),
    "row 33, stream yes": ({"stream": "yes"}, 400, "stream"),
    "row 35, 129 tools": ({"tools": [TOOL] * 129}, 400, "tools"),
    "row 35, a tool name of 65 characters": (
        {"tools": [{"type": "function", "function": {"name": "f" * 65}}]},
        400,
        "tools[0].function.name",
    ),
    "row 35, a tool name with a bad character": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        400,
        "tools[0].function.name",
    ),
    "row 35, an absent tool chosen": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400,
        "tool_choice",
    ),
    "row 39, a chat template": ({"chat_template": "{{ x }}"}, 400, "chat_template"),
    "row 39, reserved template arguments": ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
    "an integer beyond 64 bits on its way": (message(role="assistant", tool_calls=[CALL]), 400, None),
}


@pytest.mark.parametrize(("changes", "status", "param"), CHATS.values(), ids=CHATS.keys())
async def test_chats(changes: dict[str, Any], status: int, param: str | None, gateway: Running) -> None:
    num_sent = len(gateway.stand_in.requests)
    answer = await gateway.http.post("/v1/chat/completions", json=body_of(CHAT, changes))
    if status != 200:
        assert len(gateway.stand_in.requests) == num_sent, "a bad request left the gateway"
    await check(answer, status, param, gateway)


ROUTES = {
    "row 11, unknown model by path": ("GET", "/v1/models/nope", 404, None),
    "row 12, model ../x by path": ("GET", "/v1/models/..%2Fx", 404, None),
    "row 12, model with NUL by path": ("GET", "/v1/models/a%00b", 404, None),
    "row 48, GET completions": ("GET", "/v1/completions", 405, "POST"),
    "row 48, PUT chat": ("PUT", "/v1/chat/completions", 405, "POST"),
    "row 48, POST models": ("POST", "/v1/models", 405, "GET, HEAD"),
    "row 48, unknown method": ("PATCH", "/v1/models", 405, "GET, HEAD"),
    "row 48, unknown path": ("GET", "/v2/completions", 404, None),
    "row 48, path with an end too many": ("POST", "/v1/completions/", 404, None),
    "row 48, empty model": ("GET", "/v1/models/", 404, None),
    "row 44, an admin path": ("DELETE", "/admin/keys", 404, None),
}


@pytest.mark.parametrize(("method", "path", "status", "allow"), ROUTES.values(), ids=ROUTES.keys())
async def test_routes(method: str, path: str, status: int, allow: str | None, gateway: Running) -> None:
    answer = await gateway.http.request(method, path)
    assert answer.headers.get("allow") == allow
    await check(answer, status, None, gateway)


async def test_row_11_one_body_for_all_unknown_models(gateway: Running) -> None:
    answer = await gateway.complete(model="nope")
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json() == (await gateway.http.get("/v1/models/nope")).json()


@pytest.mark.parametrize("value", ["mine-1", "a" * 128])
async def test_request_id_is_echoed(value: str, gateway: Running) -> None:
    answer = await gateway.http.get("/version", headers={"X-Request-Id": value})
    assert answer.headers["x-request-id"] == value


@pytest.mark.parametrize("value", ["", "a" * 129, "two words", "\xe9"])
async def test_bad_request_id_is_replaced(value: str, gateway: Running) -> None:
    answer = await gateway.http.get("/version", headers={"X-Request-Id": value.encode("latin-1")})
    assert answer.headers["x-request-id"].startswith("req-")
