"""What is logged beside a request, and how two bodies are told apart."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.origin import Origin, fingerprint, origin_of, read_origin, shape_of
from services.gateway.core.shape import AnswerShape
from services.tokenizer.core.prepare import MAX_ORIGIN_BYTES
from shared.messages.codec import encode
from shared.messages.control import Described
from shared.params import validate_params

RID = "a" * 32


def mark(chat: bool = False, model: str = "m", prompt: Any = "hello", **body: Any) -> bytes:
    return fingerprint(chat, model, [prompt], None, validate_params(body, chat=chat))


@given(
    chat=st.booleans(),
    n=st.integers(1, 128),
    num_prompts=st.integers(1, 128),
    flags=st.tuples(*[st.booleans()] * 4),
    created=st.integers(0, 2**40),
    model=st.text(max_size=200),
)
def test_another_gateway_answers_in_the_same_shape(
    chat: bool, n: int, num_prompts: int, flags: tuple[bool, ...], created: int, model: str
) -> None:
    shape = AnswerShape(
        id=("chatcmpl-" if chat else "cmpl-") + RID,
        chat=chat,
        created=created,
        model=model,
        num_prompts=num_prompts,
        n=n,
        stream=True,
        has_logprobs=flags[0],
        return_token_ids=flags[1],
        include_usage=flags[2],
        continuous_usage=flags[3],
    )
    origin = origin_of(shape, 0, b"x" * 32)
    assert len(origin) <= MAX_ORIGIN_BYTES
    described = Described(detokenizer="d", found=True, num_choices=n, origin=origin)
    assert shape_of(read_origin(described), described, RID) == shape


@pytest.mark.parametrize("origin", [b"", b"\xc1", b"\x93\x01", b"{}"])
def test_a_request_straight_from_nats_is_a_completion(origin: bytes) -> None:
    described = Described(
        detokenizer="d", found=True, num_choices=2, model="m", created_ns=5 * 10**9, has_logprobs=True, origin=origin
    )
    shape = shape_of(read_origin(described), described, RID)
    assert shape == AnswerShape(id=f"cmpl-{RID}", chat=False, created=5, model="m", n=2, stream=True, has_logprobs=True)


@pytest.mark.parametrize("forged", [{"num_prompts": 10**9}, {"num_prompts": 0}, {"index": -1}, {"index": 128}])
def test_an_origin_that_no_gateway_wrote_makes_nobody_look_for_a_billion_prompts(forged: dict[str, int]) -> None:
    origin = encode(Origin(chat=True, model="m", created=1, **forged))
    assert read_origin(Described(detokenizer="d", found=True, model="m", origin=origin)).num_prompts == 1
    assert not read_origin(Described(detokenizer="d", found=True, model="m", origin=origin)).chat


def test_a_later_origin_is_read_too() -> None:
    shape = AnswerShape(id="", chat=True, created=1, model="m")
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(origin_of(shape, 2, b"")), "of a later release"])
    origin = read_origin(Described(detokenizer="d", found=True, origin=longer))
    assert (origin.chat, origin.index) == (True, 2)


SAME: list[dict[str, Any]] = [
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"temperature": 1},
    {"user": "somebody"},
    {"max_tokens": None},
    {"unknown_field": 3},
]
OTHER: list[dict[str, Any]] = [
    {"prompt": "hell"},
    {"prompt": [1, 2]},
    {"model": "other"},
    {"temperature": 0.5},
    {"max_tokens": 7},
    {"n": 2},
    {"stop": ["a"]},
    {"seed": 5},
    {"logprobs": 1},
    {"cache_salt": "x"},
    {"return_token_ids": True},
]


@pytest.mark.parametrize("change", SAME)
def test_how_it_is_written_and_sent_does_not_count(change: dict[str, Any]) -> None:
    assert mark(temperature=1.0, **{name: value for name, value in change.items() if name != "temperature"}) == mark(
        **{"temperature": 1.0} | change
    )
    assert mark(temperature=1.0) == mark(**{"temperature": 1.0} | change)


@pytest.mark.parametrize("change", OTHER)
def test_everything_else_counts(change: dict[str, Any]) -> None:
    assert mark() != mark(**change)


def test_two_names_of_one_limit_are_one() -> None:
    assert mark(chat=True, max_tokens=5) == mark(chat=True, max_completion_tokens=5)
