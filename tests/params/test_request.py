"""Rows 23 to 41 of the table of bad inputs: each gets a 400 that names its parameter."""

import math
from typing import Any

import pytest

from shared.errors import RequestError
from shared.params import validate_params
from shared.params.request import MAX_N

VOCAB_SIZE = 1000


def tool(name: str, **extra: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}, **extra}}


def schema(body: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": body}}


BAD_IN_BOTH: list[tuple[dict[str, Any], str]] = [
    # 4: what no JSON can carry but msgpack can
    ({"temperature": math.nan}, "temperature"),
    ({"top_p": math.inf}, "top_p"),
    ({"presence_penalty": -math.inf}, "presence_penalty"),
    ({"logit_bias": {"5": math.nan}}, "logit_bias"),
    # 23
    *(({"max_tokens": value}, "max_tokens") for value in (0, -1, 1.5, 5.0, "5", True, 10**23, 1e23, [5])),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    # 24
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    # 25
    *(({"n": value}, "n") for value in (0, -1, MAX_N + 1, 10**9, True, 1.0, "2")),
    ({"best_of": 21}, "best_of"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 3}, "best_of"),
    # 26
    *(({"temperature": value}, "temperature") for value in (-0.1, 2.1, "1", True, 10**400)),
    *(({"top_p": value}, "top_p") for value in (0, -1, 1.1)),
    *(({"top_k": value}, "top_k") for value in (-2, 1.5, 2**31)),
    *(({"min_p": value}, "min_p") for value in (2, -0.1)),
    *(({"presence_penalty": value}, "presence_penalty") for value in (2.1, -2.1)),
    *(({"frequency_penalty": value}, "frequency_penalty") for value in (2.1, -2.1)),
    *(({"repetition_penalty": value}, "repetition_penalty") for value in (0, -1, 1e-40, 1e300)),
    # 29
    *(({"logit_bias": {key: 1}}, "logit_bias") for key in ("-1", "1000", "x", "", "1.0", "٣", "01", True, 10**30)),
    *(({"logit_bias": {"5": value}}, "logit_bias") for value in (101, -101, "1", True, 10**400)),
    ({"logit_bias": [5]}, "logit_bias"),
    # 30
    *(({"stop_token_ids": [value]}, "stop_token_ids") for value in (-1, 1000, 2**31, 2**64, "5", True, 1.0)),
    *(({"allowed_token_ids": [value]}, "allowed_token_ids") for value in (-1, 1000, 2**64)),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stop_token_ids": [5] * 1000}, "stop_token_ids"),
    *(({"bad_words": value}, "bad_words") for value in ([5], [""], "word", ["x"] * 1000, ["x" * 10**6])),
    # 31
    ({"stop": ["a"] * 5}, "stop"),
    *(({"stop": value}, "stop") for value in ("", [""], "x" * 10**6, 5, [5], {"a": 1}, "\ud800")),
    # 32
    *(({"seed": value}, "seed") for value in (2**63, -(2**63) - 1, 1.5, "1", True)),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    # 33
    *(({"stream": value}, "stream") for value in ("yes", 1, 0)),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": True}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"priority": 1.5}, "priority"),
    ({"priority": 2**31}, "priority"),
    # 36 to 38
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": schema({"$ref": "#"})}, "response_format"),
    ({"response_format": schema({"pattern": "("})}, "response_format"),
    ({"guided_regex": "(a+)+$"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"response_format": {"type": "json_object"}, "guided_json": {}}, "response_format"),
    # 39
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    *(({"chat_template_kwargs": {name: 1}}, "chat_template_kwargs") for name in ("messages", "tokenize", "a b", 5)),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": "y" * 10**6}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": "\ud800"}}, "chat_template_kwargs"),
    # 40
    *(({"cache_salt": value}, "cache_salt") for value in ("", "x" * 10**6, 5)),
    # what this server cannot do
    ({"echo": True}, "echo"),
    ({"echo": "no"}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"continue_final_message": True}, "continue_final_message"),
]

BAD_IN_COMPLETIONS: list[tuple[dict[str, Any], str]] = [  # 28
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
]

BAD_IN_CHAT: list[tuple[dict[str, Any], str]] = [
    # 28
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    # 35
    ({"tools": [tool(f"t{index}") for index in range(129)]}, "tools"),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name"),
    ({"tools": [tool("ok"), tool("no way")]}, "tools[1].function.name"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [tool("ok", parameters=5)]}, "tools[0].function.parameters"),
    ({"tools": {}}, "tools"),
    ({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
    ({"tools": [tool("a")], "tool_choice": 5}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [tool("a")]}, "tools"),
]

GOOD: list[dict[str, Any]] = [
    {},
    {"temperature": 1e-40},
    {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0},
    {"temperature": None, "max_tokens": None, "stop": None, "logit_bias": None, "tools": None, "stream": None},
    {"stop": ["a", "b", "c", "d"], "stop_token_ids": [0, 999], "logit_bias": {"0": -100, 999: 100}},
    {"max_tokens": 5, "max_completion_tokens": 5, "min_tokens": 5},
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"n": 2, "best_of": 2},
    {"response_format": {"type": "text"}, "modalities": ["text"], "echo": False, "suffix": ""},
    {"tools": [], "tool_choice": "auto"},
    {"tools": [tool("a-B_9")], "tool_choice": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"user": "somebody", "metadata": {"a": "b"}, "store": True},
]


def refused(params: dict[str, Any], chat: bool) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validate_params(params, chat=chat, vocab_size=VOCAB_SIZE)
    return caught.value


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(("params", "param"), BAD_IN_BOTH)
def test_bad_parameters_name_themselves(params: dict[str, Any], param: str, chat: bool) -> None:
    error = refused(params, chat)
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
    assert len(error.message) < 400


@pytest.mark.parametrize(("params", "param"), BAD_IN_COMPLETIONS)
def test_bad_parameters_of_completions(params: dict[str, Any], param: str) -> None:
    assert refused(params, chat=False).param == param


@pytest.mark.parametrize(("params", "param"), BAD_IN_CHAT)
def test_bad_parameters_of_chat(params: dict[str, Any], param: str) -> None:
    assert refused(params, chat=True).param == param


@pytest.mark.parametrize("name", ["return_tokens_as_token_ids", "spaces_between_special_tokens"])
def test_what_is_not_done_is_refused_and_not_ignored(name: str) -> None:
    wanted = name == "return_tokens_as_token_ids"
    assert refused({name: wanted}, chat=True).param == name
    assert validate_params({name: not wanted}, chat=True).unknown == ()


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("params", GOOD)
def test_good_parameters_pass(params: dict[str, Any], chat: bool) -> None:
    assert validate_params(params, chat=chat, vocab_size=VOCAB_SIZE).unknown == ()


def test_unknown_fields_are_ignored_and_named_for_the_metric() -> None:
    body = {"model": "m", "prompt": "p", "frobnicate": {"x": 1}, "max_tokens": 3, "include_usage": True}
    checked = validate_params(body, chat=False)
    assert checked.unknown == ("frobnicate", "include_usage")
    assert checked.max_tokens == 3


def test_values_come_out_typed() -> None:
    body = {"stop": "END", "logit_bias": {"7": 1}, "stream": True, "stream_options": {"include_usage": True}, "n": 3}
    checked = validate_params(body, chat=False)
    assert (checked.stop, checked.logit_bias, checked.n) == (("END",), {7: 1.0}, 3)
    assert checked.stream and checked.include_usage and not checked.return_token_ids


def test_logprobs_of_both_endpoints_mean_the_same() -> None:
    assert validate_params({"logprobs": 2}, chat=False).logprobs == 2
    assert validate_params({"logprobs": 0}, chat=False).logprobs == 0
    assert validate_params({}, chat=False).logprobs is None
    assert validate_params({"logprobs": True}, chat=True).logprobs == 0
    assert validate_params({"logprobs": True, "top_logprobs": 4}, chat=True).logprobs == 4
    assert validate_params({"logprobs": False}, chat=True).logprobs is None
