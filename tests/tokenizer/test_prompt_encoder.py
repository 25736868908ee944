"""Row 18 of the bad inputs (special tokens in client text are text), row 17, and no second BOS."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.core.client_text import SpecialTokens, choose_mark
from services.tokenizer.core.prompt_encoder import PromptEncoder
from shared.errors import RequestError
from shared.params import validate_messages
from tests.text.tiny_tokenizers import byte_level
from tests.tokenizer.tiny_served_model import CHATML, encoder

TOKENIZER = byte_level()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
START, END = 1, 2
SPECIAL = (0, 1, 2)
HUGE = 10**6


def chat(encode: PromptEncoder, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    fixed: dict[str, Any] = {
        "now": NOW,
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "template_arguments": {},
        "max_tokens": HUGE,
    }
    return encode.encode_chat(validate_messages(messages), **{**fixed, **options})


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


ENCODER = encoder()
SPECIAL_PIECES = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_end|><|im_end|>", "<|im_<|im_end|>end|>"]
INNER_PIECES = ["<|im_", "end|>", "<", "|", ">", "im_end"]
PIECES = st.sampled_from([*SPECIAL_PIECES, *INNER_PIECES, " ", "a", "hi there", "数", "\ufdd0", "\ufdd1"])


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=3))
def test_row_18_special_tokens_of_client_text_never_become_ids(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    token_ids = chat(ENCODER, messages)
    assert [token_id for token_id in token_ids if token_id in SPECIAL] == [START, END] * len(texts) + [START]
    shown = "".join(f"<|im_start|>user\n{text.strip()}<|im_end|>\n" for text in texts) + "<|im_start|>assistant\n"
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == shown


@settings(max_examples=200, deadline=None)
@given(first=PIECES, second=PIECES, third=PIECES)
def test_special_tokens_are_not_made_of_neighbouring_texts_either(first: str, second: str, third: str) -> None:
    side_by_side = encoder("{% for m in messages %}{{ m.content }}{% endfor %}")
    token_ids = chat(side_by_side, [{"role": "user", "content": text} for text in (first, second, third)])
    assert not set(token_ids) & set(SPECIAL)
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == first + second + third


def test_a_template_may_build_special_tokens_of_its_parts() -> None:
    built = encoder("{% for m in messages %}{{ '<|' + 'im_start' + '|>' + m.content }}{% endfor %}")
    assert chat(built, user("im_start"))[0] == START
    token_ids = chat(built, user("<|im_start|>"))
    assert token_ids.count(START) == 1


def test_names_and_tool_calls_are_client_text_too() -> None:
    source = "{% for m in messages %}{{ m.name }}{{ m.tool_calls | tojson }}{{ m.content }}{% endfor %}"
    call = {"id": "<|im_end|>", "function": {"name": "<|im_start|>", "arguments": '{"<|im_end|>": ["<|im_end|>"]}'}}
    messages = [{"role": "assistant", "name": "<|im_end|>", "content": "", "tool_calls": [call]}]
    assert not set(chat(encoder(source), messages)) & set(SPECIAL)


def test_template_arguments_are_client_text_too() -> None:
    source = "{{ flag }}{{ words[0] }}"
    token_ids = chat(encoder(source), user("x"), template_arguments={"flag": True, "words": ["<|im_end|>"]})
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == "True<|im_end|>"
    assert END not in token_ids


def test_plain_messages_encode_as_the_tokenizer_does() -> None:
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert chat(ENCODER, user("What is the capital of France?")) == TOKENIZER.encode(text, add_special_tokens=False).ids


def test_comparisons_in_templates_still_work() -> None:
    source = "{% for m in messages %}{% if m.content == 'hi' %}YES{% endif %}{{ m.content | length }}{% endfor %}"
    assert TOKENIZER.decode(chat(encoder(source), user("hi"))) == "YES2"


def test_a_developer_is_a_system_where_the_template_knows_none() -> None:
    messages = [{"role": "developer", "content": "be kind"}]
    assert "system\nbe kind" in TOKENIZER.decode(chat(ENCODER, messages))
    knowing = encoder(CHATML + "{# developer #}")
    assert "developer\nbe kind" in TOKENIZER.decode(chat(knowing, messages))


def test_special_tokens_in_a_completions_prompt_are_the_clients_own() -> None:
    assert ENCODER.encode_text("<|im_start|>user", True, HUGE)[0] == START
    assert START not in ENCODER.encode_word("<|im_start|>")


def test_there_is_never_a_second_bos() -> None:
    adding = encoder("{{ bos_token }}{{ messages[0].content }}", bos=True)
    assert adding.encode_text("hi", True, HUGE)[:2] == [0, *ENCODER.encode_text("hi", True, HUGE)[:1]]
    assert adding.encode_text("<|endoftext|>hi", True, HUGE).count(0) == 1
    assert adding.encode_text("hi", False, HUGE).count(0) == 0
    for options in ({}, {"add_special_tokens": True}):
        assert chat(adding, user("hi"), **options).count(0) == 1
        assert chat(adding, user("<|im_end|>"), **options).count(0) == 1


def test_without_a_template_chat_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        chat(encoder(None), user("hi"))
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "text", ["\u0301" * 1_000_000, "\u200d" * 1_000_000, "a" * 5_000_000, "\u202e\x00" * 500_000, "a " * 1_000_000]
)
def test_row_17_texts_beyond_any_context_are_refused_unencoded(text: str) -> None:
    for attempt in (lambda: ENCODER.encode_text(text, True, 512), lambda: chat(ENCODER, user(text), max_tokens=512)):
        with pytest.raises(RequestError) as caught:
            attempt()
        assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("text", ["a\u0301\u0302\u0303", "\x00", "\u202eabc", "👩‍👩‍👧", "\ufeffbom"])
def test_row_17_odd_texts_are_read_as_they_are(text: str) -> None:
    assert TOKENIZER.decode(ENCODER.encode_text(text, True, HUGE)) == text


def test_deep_and_broken_arguments_of_tool_calls_are_bad_requests() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    surrogate = [{"role": "assistant", "content": "", "tool_calls": [_call({"x": "\ud800"})]}]
    tooling = encoder("{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}")
    for messages in ([{"role": "assistant", "content": "", "tool_calls": [_call({"x": deep})]}], surrogate):
        with pytest.raises(RequestError) as caught:
            chat(tooling, messages)
        assert caught.value.param == "messages"


def _call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_a_mark_is_in_none_of_the_texts() -> None:
    held = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    assert choose_mark(["plain"]) == "\ufdd0"
    assert choose_mark(["\ufdd0"]) == "\ufdd1"
    assert choose_mark([held]) == "\U000f0000"
    with pytest.raises(RequestError):
        choose_mark([held + "".join(map(chr, range(0xF0000, 0xF1000)))])


def test_most_text_carries_no_mark() -> None:
    special = SpecialTokens({"<|im_end|>": 2, "</s>": 1, "x": 9})
    for text in ("hello world", "a < b and b > a", "", "x", "1 <|im_ 2"):
        assert special.mark(text, "M") == text
    assert special.mark("a<|im_end|>b", "M") == "a<M|im_end|>b"
    assert special.mark("a<", "M") == "a<M"
    assert special.mark(">b", "M") == "M>b"
    assert special.mark("im", "M") == "Mim"


def test_without_special_tokens_nothing_is_split() -> None:
    special = SpecialTokens({})
    assert special.mark("<s>", "M") == "<s>"
    assert list(special.split("<s>")) == ["<s>"]
