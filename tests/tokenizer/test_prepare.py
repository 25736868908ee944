"""From a client's message to the logged Request."""

import math
from typing import Any

import msgspec
import pytest

from services.tokenizer.core.prepare import check_request_id, prepare
from shared.errors import RequestError
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import GenerateRequest, Request
from shared.sampling_seed import request_seed
from tests.text.tiny_tokenizers import byte_level
from tests.tokenizer.tiny_served_model import MAX_MODEL_LEN, served_model

MODEL = served_model()
TOKENIZER = byte_level()
REQUEST_ID = "0123456789abcdef" * 2
NOW_S = 1_800_000_000.0


def prepared(generate: GenerateRequest, worker_max_model_len: int = 0, now_s: float = NOW_S) -> Request:
    request, _ = prepare(
        generate,
        {"tiny": MODEL},
        request_id=REQUEST_ID,
        worker_max_model_len=worker_max_model_len,
        now_s=now_s,
    )
    return request


def ask(**fields: Any) -> GenerateRequest:
    return GenerateRequest(**{"v": 1, "model": "tiny", "prompt": "The capital", **fields})


def refused(generate: GenerateRequest, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        prepared(generate, **options)
    return caught.value


def test_the_log_names_the_repositorys_model_not_the_served_alias() -> None:
    alias = served_model(name="alias", root="tiny")
    request, _ = prepare(
        ask(model="alias"), {"alias": alias}, request_id=REQUEST_ID, worker_max_model_len=0, now_s=NOW_S
    )
    assert request.model == "tiny"


def test_a_completion() -> None:
    request = prepared(ask(params={"max_tokens": 5, "seed": 9}, priority=3, cache_salt="s", deadline_s=10))
    assert unpack_tokens(request.prompt_token_ids).tolist() == TOKENIZER.encode("The capital").ids
    assert (request.request_id, request.model, request.model_version) == (REQUEST_ID, "tiny", "1")

    assert (request.sampling.max_tokens, request.sampling.seed, request.sampling.temperature) == (5, 9, 0.5)
    assert (request.sampling.eos_token_ids, request.priority, request.cache_salt) == ((2,), 3, "s")
    assert (request.created_ns, request.deadline_ns) == (int(NOW_S * 1e9), int((NOW_S + 10) * 1e9))


def test_a_chat_takes_the_rest_of_the_context() -> None:
    request = prepared(ask(prompt=None, messages=[{"role": "user", "content": "hi"}]))
    num_prompt_tokens = len(unpack_tokens(request.prompt_token_ids))
    assert request.sampling.max_tokens == MAX_MODEL_LEN - num_prompt_tokens


def test_token_ids_are_taken_as_they_are() -> None:
    assert unpack_tokens(prepared(ask(prompt=[0, 5, 2])).prompt_token_ids).tolist() == [0, 5, 2]


@pytest.mark.parametrize("seed_default", [None, 123, -5])
@pytest.mark.parametrize("created_s", [NOW_S - 3, NOW_S + 1])
def test_rule_12_a_retry_is_byte_for_byte_the_same_record(seed_default: int | None, created_s: float) -> None:
    generate = ask(seed_default=seed_default, created_s=created_s, request_id=REQUEST_ID)
    first, second = prepared(generate), prepared(generate, now_s=NOW_S + 20)
    assert msgspec.msgpack.encode(first) == msgspec.msgpack.encode(second)
    assert first.sampling.seed == (request_seed(REQUEST_ID) if seed_default is None else seed_default)


def test_the_smaller_of_both_context_lengths_counts() -> None:
    assert refused(ask(prompt=[5] * 100, params={"max_tokens": 10}), worker_max_model_len=100).param == "prompt"
    assert refused(ask(prompt=[5] * 95, params={"max_tokens": 6}), worker_max_model_len=100).param == "max_tokens"
    assert prepared(ask(prompt=[5] * 95), worker_max_model_len=100).sampling.max_tokens == 5
    assert prepared(ask(prompt=[5] * 95), worker_max_model_len=9999).sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "nope"}, 404, "model", "model_not_found"),
        ({"model": "../x"}, 404, "model", "model_not_found"),
        ({"prompt": None}, 400, "prompt", None),
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "messages", None),
        ({"prompt": ""}, 400, "prompt", None),
        ({"prompt": []}, 400, "prompt", None),
        ({"prompt": [10**6]}, 400, "prompt", None),
        ({"prompt": [2**64 - 1]}, 400, "prompt", None),
        ({"prompt": "\ud800"}, 400, "prompt", None),
        ({"prompt": "w " * 100_000}, 400, "prompt", "context_length_exceeded"),
        ({"prompt": "wxyz " * 100}, 400, "prompt", "context_length_exceeded"),
        ({"prompt": [5] * MAX_MODEL_LEN}, 400, "prompt", "context_length_exceeded"),
        ({"prompt": None, "messages": []}, 400, "messages", None),
        ({"params": {"temperature": math.nan}}, 400, "temperature", None),
        ({"params": {"stop_token_ids": [10**6]}}, 400, "stop_token_ids", None),
        ({"params": {"max_tokens": 10_000}}, 400, "max_tokens", "context_length_exceeded"),
        ({"params": {"bad_words": ["two words"]}}, 400, "bad_words", None),
        ({"deadline_s": 0}, 400, "deadline_s", None),
        ({"deadline_s": -1}, 400, "deadline_s", None),
        ({"deadline_s": math.nan}, 400, "deadline_s", None),
        ({"deadline_s": 1e9}, 400, "deadline_s", None),
        ({"created_s": math.inf}, 400, "created_s", None),
        ({"created_s": NOW_S + 3600}, 400, "created_s", None),
        ({"created_s": NOW_S - 3600}, 504, None, "deadline_exceeded"),
        ({"seed_default": 2**63}, 400, "seed_default", None),
        ({"priority": 2**40}, 400, "priority", None),
        ({"cache_salt": "x" * 10**6}, 400, "cache_salt", None),
    ],
)
def test_bad_requests_name_what_is_wrong(
    fields: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    error = refused(ask(**fields))
    assert (error.status, error.param, error.code) == (status, param, code)


def test_a_traceparent_is_passed_on_if_it_is_one() -> None:
    good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert prepared(ask(traceparent=good)).traceparent == good
    assert prepared(ask(traceparent="x" * 10_000)).traceparent == ""


@pytest.mark.parametrize(
    "request_id", ["", "x", "G" * 32, "A" * 32, "a" * 31, "a" * 33, "a" * 31 + "\n", "a" * 32 + "\n"]
)
def test_rule_19_a_request_id_is_128_bits_in_hex(request_id: str) -> None:
    assert check_request_id(REQUEST_ID) == REQUEST_ID
    with pytest.raises(RequestError) as caught:
        check_request_id(request_id)
    assert caught.value.param == "request_id"
