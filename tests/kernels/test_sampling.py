"""Sampling: in torch, in C++ and in CUDA against the reference, and what must hold whatever the parameters."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import reference
from tests.kernels.samplers import Sample, sampler
from tests.kernels.sampling_rows import VOCABULARY, SampledRow, mask_of, random_logits, row, rows

SAMPLERS = ["torch", "avx2", "avx512"]


@pytest.fixture(params=[*SAMPLERS, "emulated"], scope="module")
def sample(request: pytest.FixtureRequest) -> Iterator[Sample]:
    with sampler(request.param) as one:
        yield one


@pytest.fixture(params=SAMPLERS, scope="module")
def fast(request: pytest.FixtureRequest) -> Iterator[Sample]:
    """For thousands of rows."""
    with sampler(request.param) as one:
        yield one


@settings(max_examples=200, deadline=None)
@given(batch=st.lists(rows(), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_every_row_equals_the_reference_whatever_its_batch(sample: Sample, batch: list[SampledRow], seed: int) -> None:
    logits = np.stack([random_logits(seed + index, VOCABULARY) for index in range(len(batch))])
    result = sample(logits, *batch)
    assert result.errors == {}
    assert result.tokens.dtype == np.int32
    for index, one in enumerate(batch):
        assert result.tokens[index] == reference.sample(logits[index], one, one.position)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("vocabulary", [4, 1001, 49152])
def test_plain_temperature_equals_the_reference(sample: Sample, vocabulary: int, seed: int) -> None:
    logits = random_logits(seed, min(vocabulary, 1001))
    logits = np.concatenate([logits, np.full(vocabulary - len(logits), -60, dtype=np.float32)])
    one = row(position=seed, seed=seed * 7919, top_p=0.99)
    assert sample(logits, one).tokens[0] == reference.sample(logits, one, one.position)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8])
def test_draws_follow_the_softmax(fast: Sample, temperature: float) -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0, 0.5, 1.5, -0.5, 0.2], dtype=np.float32)
    batch = [row(seed=seed, position=seed % 3, temperature=temperature) for seed in range(6000)]
    counts = np.bincount(fast(logits, *batch).tokens, minlength=8)
    weights = np.exp(logits.astype(np.float64) / temperature)
    # 24.3: a chi-square of 7 degrees of freedom exceeds it once in a thousand
    assert chi_square(counts, 6000 * weights / weights.sum()) < 24.3


def test_draws_at_positions_of_one_seed_are_independent(fast: Sample) -> None:
    logits = np.zeros(4, dtype=np.float32)
    tokens = fast(logits, *[row(seed=99, position=position) for position in range(8000)]).tokens
    pairs = np.bincount(tokens[:-1:2] * 4 + tokens[1::2], minlength=16)
    assert chi_square(pairs, np.full(16, 4000 / 16)) < 37.7


def test_a_filtered_draw_follows_the_rest_of_the_softmax(fast: Sample) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], dtype=np.float32))
    cases = [({"top_k": 3}, 3), ({"top_p": 0.85}, 3), ({"min_p": 0.4}, 3), ({"top_k": 4, "top_p": 0.5}, 2)]
    for params, num_left in cases:
        batch = [row(seed=seed, **params) for seed in range(4000)]
        counts = np.bincount(fast(logits, *batch).tokens, minlength=5)
        assert counts[num_left:].sum() == 0
        probabilities = np.exp(logits[:num_left].astype(np.float64))
        assert chi_square(counts[:num_left], 4000 * probabilities / probabilities.sum()) < 13.8


def test_ties_go_to_the_lower_id(sample: Sample) -> None:
    logits = np.zeros(50_000, dtype=np.float32)
    logits[[40_000, 123, 20_000]] = 5.0
    tied = [row(temperature=0.0), row(temperature=0.0, logit_bias={7: 5.0}), row(temperature=0.0, bad_token_ids=(123,))]
    assert sample(logits, *tied).tokens.tolist() == [123, 7, 20_000]


def test_top_k_keeps_all_equals_of_the_last_one(sample: Sample) -> None:
    logits = np.array([3.0, 1.0, 1.0, 1.0, 0.0], dtype=np.float32)
    tokens = sample(logits, *[row(seed=seed, top_k=2, temperature=2.0) for seed in range(500)]).tokens
    assert set(tokens.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [1e-40, 5e-324, 1e-6, 1e-5, 1e-3])
def test_a_tiny_temperature_takes_the_likeliest_token(sample: Sample, temperature: float) -> None:
    logits = random_logits(3, 1000, spread=20.0)
    logits[400] = logits.max() + 1
    result = sample(logits, row(temperature=temperature, top_p=0.9, logprobs=2))
    assert result.errors == {}
    assert result.tokens[0] == 400
    report = result.logprobs[0]
    assert report is not None
    assert np.isfinite(report.logprob)


def test_a_row_of_nan_fails_alone(sample: Sample) -> None:
    logits = np.stack([random_logits(seed, 100) for seed in range(5)])
    batch = [row(seed=seed, temperature=0.0 if seed % 2 else 1.0, logprobs=1) for seed in range(5)]
    healthy = sample(logits, *batch)
    logits[1, 50] = np.nan
    logits[2, 50] = np.inf
    logits[3] = -np.inf
    failed = sample(logits, *batch)
    assert set(failed.errors) == {1, 2, 3}
    assert "not finite" in failed.errors[1]
    for index in (0, 4):
        assert failed.tokens[index] == healthy.tokens[index]
        assert failed.logprobs[index] == healthy.logprobs[index]


@pytest.mark.parametrize("name", ["bad_token_ids", "allowed_token_ids", "stop_token_ids", "eos_token_ids"])
@pytest.mark.parametrize("token", [-1, 100, 2**31])
def test_an_id_outside_the_vocabulary_fails_its_row_alone(sample: Sample, name: str, token: int) -> None:
    logits = random_logits(1, 100)
    result = sample(logits, row(temperature=0.0), row(min_tokens=1, **{name: (3, token)}), row(temperature=0.0))
    assert list(result.errors) == [1]
    assert f"token id {token} is not in the vocabulary of 100" in result.errors[1]
    assert result.tokens[0] == result.tokens[2] == logits.argmax()


@pytest.mark.parametrize("token", [-1, 100])
def test_a_bias_or_history_outside_the_vocabulary_fails_its_row_alone(sample: Sample, token: int) -> None:
    logits = random_logits(1, 100)
    result = sample(
        logits, row(logit_bias={token: 1.0}), row(history=[token], repetition_penalty=1.1), row(temperature=0.0)
    )
    assert set(result.errors) == {0, 1}


def test_nothing_left_to_sample_is_an_error_of_the_row(sample: Sample) -> None:
    one = row(allowed_token_ids=(4,), bad_token_ids=(4,))
    result = sample(random_logits(1, 10), one, row(temperature=0.0))
    assert list(result.errors) == [0]
    assert "no token" in result.errors[0]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000])
def test_a_grammar_mask_allows_by_bit_i_of_word_i_32(sample: Sample, size: int) -> None:
    logits = random_logits(2, size)
    for allowed in {0, size // 2, size - 1}:
        masked = row(temperature=0.0, grammar_mask=mask_of([allowed], size))
        drawn = row(seed=3, grammar_mask=mask_of([allowed], size))
        assert sample(logits, masked, row(temperature=0.0), drawn).tokens.tolist() == [
            allowed,
            logits.argmax(),
            allowed,
        ]


def test_a_grammar_that_allows_nothing_fails_its_row_alone(sample: Sample) -> None:
    result = sample(random_logits(1, 40), row(grammar_mask=mask_of([], 40)), row(temperature=0.0))
    assert list(result.errors) == [0]
    assert "no token" in result.errors[0]


def test_a_bias_does_not_bring_back_what_the_grammar_forbids(sample: Sample) -> None:
    logits = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    biased = row(temperature=0.0, grammar_mask=mask_of([0, 1], 3), logit_bias={2: 100.0, 0: 1.5})
    assert sample(logits, biased).tokens.tolist() == [0]


@pytest.mark.parametrize("mask", [np.zeros(1, np.uint32), np.zeros(2, np.int64), np.zeros(4, np.uint32)[::2]], ids=str)
def test_a_grammar_mask_of_another_shape_is_refused(sample: Sample, mask: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"uint32 \[2\]"):
        sample(random_logits(1, 40), row(grammar_mask=mask))


def test_eos_and_stop_ids_wait_for_min_tokens(sample: Sample) -> None:
    logits = np.array([9.0, 8.0, 7.0, 1.0], dtype=np.float32)
    batch = [
        row(position=position, temperature=0.0, min_tokens=2, eos_token_ids=(0,), stop_token_ids=(1,))
        for position in range(4)
    ]
    assert sample(logits, *batch).tokens.tolist() == [2, 2, 0, 0]


def test_penalties_count_as_documented(sample: Sample) -> None:
    logits = np.array([4.0, 3.9, 3.8, -1.0], dtype=np.float32)
    prompt_and_output = {"history": [0, 0, 1], "num_prompt_tokens": 2}
    batch = [
        row(temperature=0.0, repetition_penalty=1.2, **prompt_and_output),  # prompt counts: 0 and 1 are penalised
        row(temperature=0.0, presence_penalty=2.0, **prompt_and_output),  # only the output counts: 1 is penalised
        row(temperature=0.0, presence_penalty=0.3, history=[0, 0, 1], num_prompt_tokens=0),
        row(temperature=0.0, frequency_penalty=0.15, history=[0, 0, 1], num_prompt_tokens=0),
    ]
    assert sample(logits, *batch).tokens.tolist() == [2, 0, 2, 2]


@pytest.mark.parametrize("num_top", [0, 1, 5, 40])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"logit_bias": {3: 50.0}}, {"top_k": 1}], ids=str)
def test_logprobs_are_those_of_the_raw_logits(sample: Sample, num_top: int, params: dict[str, object]) -> None:
    logits = random_logits(11, 40)
    logits[[7, 8]] = logits[9]
    result = sample(logits, row(logprobs=num_top, **params), row())
    report = result.logprobs[0]
    assert report is not None
    expected = reference.token_logprobs(logits, int(result.tokens[0]), num_top)
    assert (report.rank, report.top_ids) == (expected.rank, expected.top_ids)
    np.testing.assert_allclose(
        [report.logprob, *report.top_logprobs], [expected.logprob, *expected.top_logprobs], rtol=1e-5, atol=1e-6
    )
    assert result.logprobs[1] is None


def test_logprobs_are_finite_however_far_apart_logits_are(sample: Sample) -> None:
    logits = np.array([3.4e38, -3.4e38, 3.3e38, 0.0, -3.4e38, -3.3e38], dtype=np.float32)
    batch = [
        row(temperature=0.0, logprobs=6),
        row(temperature=0.0, allowed_token_ids=(4,), logprobs=4),
        row(seed=1, logprobs=1),
    ]
    result = sample(logits, *batch)
    assert result.errors == {}
    assert result.tokens.tolist() == [0, 4, 0]
    for report, token, num_top in zip(result.logprobs, (0, 4, 0), (6, 4, 1), strict=True):
        expected = reference.token_logprobs(logits, token, num_top)
        assert report == expected
        assert np.isfinite(expected.logprob) and np.isfinite(expected.top_logprobs).all()


def test_the_greedy_token_has_rank_one_even_in_a_tie(sample: Sample) -> None:
    logits = np.array([1.0, 5.0, 5.0], dtype=np.float32)
    report = sample(logits, row(temperature=0.0, logprobs=2)).logprobs[0]
    assert report is not None
    assert (report.rank, report.top_ids) == (1, (1, 2))


def test_a_draw_depends_on_seed_and_position_only(sample: Sample) -> None:
    logits = random_logits(5, 5000)
    alone = [int(sample(logits, row(seed=seed, position=seed + 1)).tokens[0]) for seed in range(30)]
    batch = [row(seed=seed, position=seed + 1) for seed in range(30)]
    assert sample(logits, *batch).tokens.tolist() == alone
    assert sample(logits, *reversed(batch)).tokens.tolist() == alone[::-1]
    assert len(set(alone)) > 15


def test_no_rows(sample: Sample) -> None:
    result = sample(np.zeros((0, 10), dtype=np.float32))
    assert len(result.tokens) == 0
    assert result.logprobs == []
