"""Defaults and bounds that need the model: rows 19, 20, 27, 30 of the bad inputs, and the logged Sampling."""

from typing import Any

import pytest

from shared.errors import RequestError
from shared.messages.sampling import Sampling
from shared.params import Params, resolve_sampling

DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 40}
WORDS = {"bad": [5], " bad": [6], "worse": [7, 8], " worse": [9]}


def resolve(params: Params, **overrides: Any) -> Sampling:
    arguments: dict[str, Any] = {
        "chat": False,
        "defaults": {},
        "eos_token_ids": (2, 0),
        "vocab_size": 100,
        "max_model_len": 64,
        "num_prompt_tokens": 10,
        "seed": 77,
        "encode_word": lambda word: WORDS[word],
    }
    return resolve_sampling(params, **{**arguments, **overrides})


def refused(params: Params, **overrides: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        resolve(params, **overrides)
    return caught.value


def test_max_tokens_defaults_to_16_in_completions_and_to_the_rest_in_chat() -> None:
    assert resolve(Params()).max_tokens == 16
    assert resolve(Params(), num_prompt_tokens=60).max_tokens == 4
    assert resolve(Params(), chat=True).max_tokens == 54


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    for chat, param in ((False, "prompt"), (True, "messages")):
        error = refused(Params(max_tokens=1), num_prompt_tokens=64, chat=chat)
        assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_prompt_and_max_tokens_beyond_the_context_are_refused(name: str) -> None:
    assert resolve(Params(max_tokens=54)).max_tokens == 54
    error = refused(Params(max_tokens=55, max_tokens_name=name))
    assert (error.status, error.param) == (400, name)
    assert "64" in error.message and "65" in error.message


def test_min_tokens_above_the_default_max_tokens_is_refused() -> None:
    assert refused(Params(min_tokens=17)).param == "min_tokens"


def test_defaults_of_the_model_apply_where_the_client_is_silent() -> None:
    sampling = resolve(Params(top_p=0.5), defaults=DEFAULTS)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 40)
    plain = resolve(Params())
    assert (plain.temperature, plain.top_p, plain.top_k, plain.min_p, plain.repetition_penalty) == (1, 1, 0, 0, 1)


def test_top_k_that_bounds_nothing_is_off() -> None:
    for top_k in (-1, 0, 100, 5000):
        assert resolve(Params(top_k=top_k), defaults=DEFAULTS).top_k == 0
    assert resolve(Params(top_k=99)).top_k == 99


def test_a_denormal_temperature_is_greedy() -> None:
    assert resolve(Params(temperature=1e-40)).temperature == 0.0
    assert resolve(Params(temperature=0.01)).temperature == 0.01


def test_the_seed_is_the_clients_or_the_one_fixed_before() -> None:
    assert resolve(Params()).seed == 77
    assert resolve(Params(seed=0)).seed == 0


def test_ignore_eos_leaves_no_eos() -> None:
    assert resolve(Params()).eos_token_ids == (2, 0)
    assert resolve(Params(ignore_eos=True, stop_token_ids=(3,))).eos_token_ids == ()


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (Params(stop_token_ids=(100,)), "stop_token_ids"),
        (Params(allowed_token_ids=(5, 100)), "allowed_token_ids"),
        (Params(logit_bias={100: 1.0}), "logit_bias"),
    ],
)
def test_ids_are_checked_again_against_the_vocabulary(params: Params, name: str) -> None:
    assert refused(params).param == name


def test_bad_words_are_banned_with_and_without_a_blank() -> None:
    assert resolve(Params(bad_words=("bad",))).bad_token_ids == (5, 6)
    assert refused(Params(bad_words=("worse",))).param == "bad_words"
