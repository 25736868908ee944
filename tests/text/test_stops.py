"""Stop strings: found at the right token by everyone, never leaked, whatever the split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.detokenizer.core.stops import find_stop, num_held_back
from services.detokenizer.core.text_view import TextView, text_upto
from services.detokenizer.core.vocabulary import Vocabulary
from shared.messages.sampling import Sampling
from tests.text.tiny_tokenizers import ALL

VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in ALL.items()}
ENDLESS = 10**9

ALPHABET = st.text(alphabet="ab数🜁 ", min_size=1, max_size=40)
STOPS = st.lists(st.text(alphabet="ab数🜁 ", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


def first_stop(name: str, token_ids: list[int], stops: tuple[str, ...]) -> int | None:
    """The definition: the smallest k such that decode of the first k tokens holds a stop string."""
    for count in range(1, len(token_ids) + 1):
        text = ALL[name].decode(token_ids[:count], skip_special_tokens=True)
        if any(stop in text for stop in stops):
            return count
    return None


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@settings(max_examples=200, deadline=None)
@given(text=ALPHABET, stops=STOPS)
def test_rule_06_a_stop_strings_end_is_the_smallest_k_whose_decode_holds_it(
    name: str, text: str, stops: list[str]
) -> None:
    token_ids = ALL[name].encode(text, add_special_tokens=False).ids
    view = TextView(VOCABULARIES[name], Sampling(max_tokens=ENDLESS, stop=tuple(stops)))
    view.feed(token_ids)
    assert view.end == first_stop(name, token_ids, tuple(stops))
    whole = ALL[name].decode(token_ids, skip_special_tokens=True)
    assert whole.startswith(view.text)
    if view.end is not None:
        assert view.reason == "stop_string"
        assert view.stop_string in stops
        assert whole[len(view.text) :].startswith(view.stop_string)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@settings(max_examples=150, deadline=None)
@given(text=ALPHABET, stops=STOPS)
def test_nothing_of_a_stop_string_is_ever_sent(name: str, text: str, stops: list[str]) -> None:
    token_ids = ALL[name].encode(text, add_special_tokens=False).ids
    view = TextView(VOCABULARIES[name], Sampling(max_tokens=ENDLESS, stop=tuple(stops)))
    sent = ""
    for token_id in token_ids:
        before = view.num_tokens
        view.feed([token_id])
        sent += view.text_between(before, view.num_tokens)
    assert sent == view.text
    assert not any(stop in sent for stop in stops)
    if view.end is None:
        held = ALL[name].decode(token_ids, skip_special_tokens=True)[len(sent) :].rstrip("\ufffd")
        assert len(held) < max(map(len, stops)) or name == "byte_fallback"


@settings(max_examples=150, deadline=None)
@given(text=ALPHABET, stops=STOPS)
def test_what_was_held_back_comes_out_when_the_length_ends_it(text: str, stops: list[str]) -> None:
    token_ids = ALL["byte_level"].encode(text, add_special_tokens=False).ids
    view = TextView(VOCABULARIES["byte_level"], Sampling(max_tokens=len(token_ids), stop=tuple(stops)))
    view.feed(token_ids)
    if view.reason == "length":
        assert view.text == text
    else:
        assert view.reason == "stop_string"


@pytest.mark.parametrize(
    ("stops", "include", "expected", "found"),
    [
        (("END",), False, "The ", "END"),
        (("END",), True, "The END", "END"),
        (("ND of", "END of"), False, "The ", "END of"),
        ((" of", "END"), False, "The ", "END"),
        (("T",), False, "", "T"),
        (("ine.",), False, "The END of the l", "ine."),
        (("absent", "line!"), False, "The END of the line.", None),
    ],
)
def test_examples_across_tokens(stops: tuple[str, ...], include: bool, expected: str, found: str | None) -> None:
    token_ids = ALL["byte_level"].encode("The END of the line.", add_special_tokens=False).ids
    sampling = Sampling(max_tokens=len(token_ids), stop=stops, include_stop_str_in_output=include)
    view = TextView(VOCABULARIES["byte_level"], sampling)
    for token_id in token_ids:
        view.feed([token_id])
    assert (view.text, view.stop_string) == (expected, found)


def test_a_stop_string_goes_before_length_at_the_same_token() -> None:
    token_ids = ALL["byte_level"].encode("The END", add_special_tokens=False).ids
    view = TextView(VOCABULARIES["byte_level"], Sampling(max_tokens=len(token_ids), stop=("END",)))
    view.feed(token_ids)
    assert (view.end, view.reason, view.text) == (len(token_ids), "stop_string", "The ")


def test_a_stop_string_in_an_open_run_of_byte_tokens_counts() -> None:
    tokenizer = ALL["byte_fallback"]
    token_ids = [tokenizer.token_to_id(token) for token in ("<0x58>", "<0x59>", "<0x5A>")]
    view = TextView(VOCABULARIES["byte_fallback"], Sampling(max_tokens=ENDLESS, stop=("Y",)))
    view.feed(token_ids)
    assert (view.end, view.text) == (2, "X")


def test_min_tokens_lets_early_stop_strings_pass() -> None:
    token_ids = ALL["byte_level"].encode("END a END b", add_special_tokens=False).ids
    first = ALL["byte_level"].encode("END", add_special_tokens=False).ids
    sampling = Sampling(max_tokens=99, min_tokens=len(first), stop=("END",))
    assert text_upto(VOCABULARIES["byte_level"], sampling, token_ids) == "END a "


def test_a_cancelled_text_keeps_back_what_may_be_a_stop_string() -> None:
    token_ids = ALL["byte_level"].encode("The EN", add_special_tokens=False).ids
    view = TextView(VOCABULARIES["byte_level"], Sampling(max_tokens=99, stop=("END",)))
    view.feed(token_ids)
    assert view.text_upto(len(token_ids)) == "The "


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="ab", max_size=12), stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3)
)
def test_held_back_is_the_longest_possible_beginning(text: str, stops: list[str]) -> None:
    endings = [text[len(text) - size :] for size in range(len(text) + 1)]
    possible = [ending for ending in endings if any(stop != ending and stop.startswith(ending) for stop in stops)]
    assert num_held_back(text, stops) == max(map(len, possible), default=0)


def test_find_stop_prefers_the_earliest_beginning_then_the_first_named() -> None:
    assert find_stop("xxabc", 3, ("c", "abc", "ab")) == (2, "abc")
    assert find_stop("xxabc", 2, ("ab", "abc")) == (2, "ab")
    assert find_stop("abxx", 2, ("ab",)) is None
