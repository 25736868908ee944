"""Events in pieces of any size: what counts as a token, and what as an error."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.events import EventReader, read_error


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(value: str | None, finish: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": value, "finish_reason": finish, **more}])


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("data", "num"),
    [
        (text(" a"), 1),
        (b"id: 4\n" + text(" a"), 1),
        (b"id: 4\r\n" + text(" a").replace(b"\n", b"\r\n"), 1),
        (text(""), 1),  # half a character
        (text("", "length"), 0),  # only why it ended
        (text(" a", "length"), 1),
        (text("", "length", token_ids=[5]), 1),
        (delta(role="assistant", content=""), 0),
        (delta(role="assistant", content=None), 0),
        (delta(role="assistant", content="a"), 1),
        (delta(reasoning_content="hm"), 1),
        (delta("stop"), 0),
        (USAGE, 0),
        (DONE, 0),
        (b": ping\n\n", 0),
        (text(" a") + text(" b") + USAGE + DONE, 2),
        (b'data:{"choices":[{"text":"no space"}]}\n\n', 1),
    ],
)
def test_what_is_a_token(data: bytes, num: int) -> None:
    reader = EventReader()
    assert reader.feed(data) == num == reader.num_events
    assert not reader.error


@given(st.lists(st.integers(0, 400), max_size=12))
def test_pieces_of_any_size(cuts: list[int]) -> None:
    data = text(" a") + text("data: [DONE]\n\ndata: x") + text("é") + USAGE + DONE
    reader, places = EventReader(), sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    total = sum(reader.feed(data[a:b]) for a, b in pairwise(places))
    assert (total, reader.num_usage_tokens, reader.num_prompt_tokens, reader.is_done) == (3, 3, 7, True)


def test_why_an_answer_ended() -> None:
    reader = EventReader()
    reader.feed(text(" a") + text("", "abort") + USAGE + DONE)
    assert reader.finish_reason == "abort"


@pytest.mark.parametrize(
    ("data", "error", "code"),
    [
        (event(error={"message": "gone", "code": "draining"}), "gone", "draining"),
        (event(error={"message": "gone", "code": 503}), "gone", "503"),
        (event(error="plain"), '"plain"', ""),
        (b"data: {nonsense\n\n", "an event that cannot be read", ""),
        (event(error=None, choices=[]), "", ""),
    ],
)
def test_errors(data: bytes, error: str, code: str) -> None:
    reader = EventReader()
    reader.feed(text(" a") + data)
    assert reader.error.startswith(error)
    assert bool(reader.error) == bool(error)
    assert reader.code == code


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": {"message": "m", "code": "c"}}', ("m", "c")),
        (b'{"message": "m", "object": "error"}', ("m", "")),
        (b"<html>Bad Gateway</html>", ("<html>Bad Gateway</html>", "")),
        (b"", ("an error without a text", "")),
        (b"{}", ("an error without a message", "")),
    ],
)
def test_read_error(body: bytes, expected: tuple[str, str]) -> None:
    assert read_error(body) == expected
