"""Text equals the tokenizer's own decode, whatever the tokens and however they arrive."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.detokenizer.core.text_view import MAX_RECENT, TextView, text_upto
from services.detokenizer.core.token_logprobs import token_logprob
from services.detokenizer.core.vocabulary import Vocabulary
from shared.messages.pipeline import RowLogprobs
from shared.messages.sampling import Sampling
from tests.text.tiny_tokenizers import ALL, CORPUS

VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in ALL.items()}
NAMES = sorted(ALL)
ENDLESS = 10**9

SAMPLES = [
    *CORPUS,
    "東京都は🌏の上",
    "각 각 (composed and decomposed Hangul)",
    "🏳️‍🌈👨‍👩‍👧‍👦",
    "a\u0301\u0302\u0303" * 20,
    " leading and trailing  ",
    "\ufffd real replacement \ufffd",
    "nul \x00 and \r\n",
]


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, one beyond the vocabulary among them."""
    return st.lists(st.integers(0, tokenizer.get_vocab_size()), max_size=40)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_rule_14_text_is_settled_plus_tail_at_every_length(name: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = ALL[name]
    token_ids = data.draw(ids_of(tokenizer))
    stream = VOCABULARIES[name].stream(skip)
    settled = ""
    for count, token_id in enumerate(token_ids, start=1):
        settled += stream.push(token_id)
        assert settled + stream.tail() == tokenizer.decode(token_ids[:count], skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(1, 5), min_size=60, max_size=60))
def test_bytes_that_are_no_utf8_decode_as_the_tokenizer_does(data: bytes, cuts: list[int]) -> None:
    """Single-byte tokens reach every malformed UTF-8 there is."""
    tokenizer = ALL["byte_level"]
    pieces = [
        piece.encode() if isinstance(piece, str) else piece for piece in VOCABULARIES["byte_level"]._pieces[False]
    ]
    by_byte = {piece: token_id for token_id, piece in enumerate(pieces) if len(piece) == 1}
    token_ids = [by_byte[bytes([byte])] for byte in data]
    view = TextView(VOCABULARIES["byte_level"], Sampling(max_tokens=len(token_ids) or 1))
    start = 0
    for width in cuts:
        view.feed(token_ids[start : start + width])
        start += width
    assert view.text == tokenizer.decode(token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_samples_of_every_script_equal_decode_for_any_split(name: str, sample: str) -> None:
    tokenizer = ALL[name]
    token_ids = tokenizer.encode(sample, add_special_tokens=False).ids
    whole = tokenizer.decode(token_ids, skip_special_tokens=True)
    sampling = Sampling(max_tokens=len(token_ids))
    for width in (1, 2, 3, 7, len(token_ids)):
        view = TextView(VOCABULARIES[name], sampling)
        for start in range(0, len(token_ids), width):
            view.feed(token_ids[start : start + width])
        assert (view.text, view.end, view.reason) == (whole, len(token_ids), "length")
        deltas = [view.text_between(position, position + 1) for position in range(len(token_ids))]
        assert "".join(deltas) == whole


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_rule_14_positions_are_prefixes_and_independent_of_splits(name: str, data: st.DataObject) -> None:
    tokenizer = ALL[name]
    token_ids = data.draw(ids_of(tokenizer))
    stops = tuple(data.draw(st.lists(st.sampled_from(["end", "a ", "▁", " ", "th", "数", "\ufffd", "e"]), max_size=2)))
    sampling = Sampling(max_tokens=ENDLESS, stop=stops)
    view = TextView(VOCABULARIES[name], sampling)
    rest = list(token_ids)
    while rest:
        width = data.draw(st.integers(1, len(rest)))
        view.feed(rest[:width])
        del rest[:width]
    texts = [text_upto(VOCABULARIES[name], sampling, token_ids[:count]) for count in range(len(token_ids) + 1)]
    assert [view.text_upto(count) for count in range(len(token_ids) + 1)] == texts
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


@pytest.mark.parametrize("stops", [(), ("never there", "\n\n")])
def test_long_texts_can_be_read_from_any_position(stops: tuple[str, ...]) -> None:
    tokenizer, vocabulary = ALL["byte_level"], VOCABULARIES["byte_level"]
    token_ids = tokenizer.encode("東京 is the capital. " * 200, add_special_tokens=False).ids
    assert len(token_ids) > 3 * MAX_RECENT
    sampling = Sampling(max_tokens=len(token_ids), stop=stops)
    view = TextView(vocabulary, sampling)
    view.feed(token_ids)
    assert view.text == "東京 is the capital. " * 200
    marks = [0, 1, MAX_RECENT - 1, MAX_RECENT, MAX_RECENT + 1, 2 * MAX_RECENT, len(token_ids) - 1, len(token_ids)]
    for start in marks:
        for stop in marks:
            between = text_upto(vocabulary, sampling, token_ids[:stop])[len(view.text_upto(start)) :]
            assert view.text_between(start, stop) == between
    assert (
        view.text_between(len(token_ids) - 2, len(token_ids) + 9)
        == view.text[len(view.text_upto(len(token_ids) - 2)) :]
    )


def test_half_a_character_waits_and_comes_out_at_the_end() -> None:
    tokenizer, vocabulary = ALL["byte_level"], VOCABULARIES["byte_level"]
    token_ids = tokenizer.encode("🜁", add_special_tokens=False).ids
    assert len(token_ids) > 1
    view = TextView(vocabulary, Sampling(max_tokens=ENDLESS))
    view.feed(token_ids[:-1])
    assert view.text == ""
    view.feed(token_ids[-1:])
    assert view.text == "🜁"
    assert text_upto(vocabulary, Sampling(max_tokens=1), token_ids[:1]) == "\ufffd"


def test_eos_and_stop_tokens_show_only_where_asked_for() -> None:
    tokenizer, vocabulary = ALL["byte_level"], VOCABULARIES["byte_level"]
    word = tokenizer.encode(" capital", add_special_tokens=False).ids
    tool = tokenizer.token_to_id("<tool>")
    eos = tokenizer.token_to_id("<|im_end|>")
    stop_at_tool = Sampling(max_tokens=9, stop_token_ids=(tool,))
    view = TextView(vocabulary, stop_at_tool)
    view.feed([*word, tool, *word])
    assert (view.text, view.end, view.reason) == (" capital", len(word) + 1, "stop_token")
    included = Sampling(max_tokens=9, stop_token_ids=(tool,), include_stop_str_in_output=True)
    assert text_upto(vocabulary, included, [*word, tool]) == " capital<tool>"
    for skip in (True, False):
        ended = Sampling(max_tokens=9, eos_token_ids=(eos,), skip_special_tokens=skip)
        assert text_upto(vocabulary, ended, [*word, eos]) == " capital"
    early = Sampling(max_tokens=99, min_tokens=9, stop_token_ids=(tool,))
    assert text_upto(vocabulary, early, [*word, tool]) == " capital<tool>"


def test_token_texts_and_offsets_of_logprobs() -> None:
    tokenizer, vocabulary = ALL["byte_level"], VOCABULARIES["byte_level"]
    token_ids = tokenizer.encode("Paris is 数", add_special_tokens=False).ids
    view = TextView(vocabulary, Sampling(max_tokens=ENDLESS, logprobs=1, stop=("never",)))
    view.feed(token_ids)
    texts = [vocabulary.token_text(token_id) for token_id in token_ids]
    assert "".join(texts[:-3]) == "Paris is 数"[: len("".join(texts[:-3]))]
    offset = 0
    for position, text in enumerate(texts[:3]):
        assert view.offset(position) == offset
        offset += len(text)
    shown = token_logprob(vocabulary, token_ids[0], RowLogprobs(-0.5, 1, (0, token_ids[1]), (-1.0, -2.0)), 7)
    assert (shown.token, shown.token_id, shown.logprob, shown.offset) == (texts[0], token_ids[0], -0.5, 7)
    assert shown.top == (("<|endoftext|>", -1.0, 0), (texts[1], -2.0, token_ids[1]))


def test_token_texts_of_byte_fallback_keep_their_blanks() -> None:
    tokenizer, vocabulary = ALL["byte_fallback"], VOCABULARIES["byte_fallback"]
    assert vocabulary.token_text(tokenizer.token_to_id("▁end")) == " end"
    assert vocabulary.token_text(tokenizer.token_to_id("<0xE6>")) == "\ufffd"
    assert vocabulary.token_text(tokenizer.token_to_id("<0x41>")) == "A"
    assert vocabulary.token_text(-1) == vocabulary.token_text(10**6) == ""


def test_offsets_are_refused_without_logprobs() -> None:
    view = TextView(VOCABULARIES["byte_level"], Sampling(max_tokens=4))
    view.feed([5])
    with pytest.raises(ValueError, match="offsets"):
        view.offset(0)
