"""Rows 14 to 17, 21 and 22 of the bad inputs."""

from typing import Any

import pytest

from shared.errors import RequestError
from shared.params import validate_messages, validate_prompt, validate_prompts
from shared.params.messages import MAX_MESSAGES
from shared.params.prompt import MAX_PROMPTS

VOCAB_SIZE = 1000


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, "", [], [[]], [""], ["a", [1]], [1, "a"], [[1], "a"], ["a"] * 10_000, 5, {"a": 1}, [None], [True]),
        *([[1, "a"]], [[[1]]], [-1], [VOCAB_SIZE], [2**31], [2**64], [1.0], [[5], [VOCAB_SIZE]], "\ud800", ["\udfff"]),
        ["a"] * (MAX_PROMPTS + 1),
    ],
)
def test_bad_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        validate_prompts(prompt, VOCAB_SIZE)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hello", ["hello"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 999]], [[1], [2, 999]]),
        ("\x00\u200f e\u0301", ["\x00\u200f e\u0301"]),
    ],
)
def test_good_prompts_are_listed(prompt: Any, prompts: list[Any]) -> None:
    assert validate_prompts(prompt, VOCAB_SIZE) == prompts


def test_one_prompt_on_nats_is_a_text_or_ids() -> None:
    assert validate_prompt([5, 6], VOCAB_SIZE) == [5, 6]
    with pytest.raises(RequestError):
        validate_prompt(["a"], VOCAB_SIZE)


def call(name: str = "f", arguments: Any = "{}", call_id: Any = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([USER] * (MAX_MESSAGES + 1), "messages"),
        ([USER] * 100_000, "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([USER, {"role": "wizard", "content": "hi"}], "messages[1].role"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "system", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": "\udc00"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "hi", "name": ""}], "messages[0].name"),
        ([{"role": "tool", "content": "42", "tool_call_id": "c1"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "42"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].content"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [call(call_id=None)]}], "messages[0].tool_calls[0].id"),
        (
            [{"role": "assistant", "tool_calls": [call(arguments="{")]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [call(arguments="[" * 100_000)]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "assistant", "tool_calls": [call(name="")]}], "messages[0].tool_calls[0].function.name"),
    ],
)
def test_bad_messages_name_their_place(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate_messages(messages)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "file:///etc/passwd", "data:image/png;base64,AA", ""])
def test_images_are_refused_whatever_their_url(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(RequestError) as caught:
        validate_messages([{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
    assert caught.value.param == "messages[0].content[1]"


def test_messages_come_out_in_one_form() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "system", "content": parts},
        {"role": "user", "content": "", "name": "ann", "extra": 1},
        {"role": "assistant", "content": None, "tool_calls": [call(arguments='{"x": 1}')]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    assert validate_messages(messages) == [
        {"role": "system", "content": "one\ntwo"},
        {"role": "user", "content": "", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
