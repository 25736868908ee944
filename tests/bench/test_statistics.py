"""Percentiles, arrivals, objectives and summaries."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.arrivals import arrival_times
from bench.core.goodput import Objective, ObjectiveError
from bench.core.outcome import Outcome
from bench.core.percentiles import distribution_ms, percentile
from bench.core.summary import Summary, add_processes, summarize

times = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(times, min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


@given(st.lists(times, min_size=1, max_size=50))
def test_a_distribution_is_ordered(values: list[float]) -> None:
    found = distribution_ms(values)
    assert found.num == len(values)
    assert found.p50 <= found.p90 <= found.p99 <= found.max  # type: ignore[operator]


def test_nothing_has_no_distribution() -> None:
    assert distribution_ms([]).p50 is None


@given(st.integers(2, 200), st.floats(0.1, 1000), st.floats(0.05, 20), st.integers())
def test_arrivals_offer_the_rate_that_was_asked(num: int, rate: float, burstiness: float, seed: int) -> None:
    found = arrival_times(num, rate, burstiness, random.Random(seed))
    assert len(found) == num
    assert found[0] == 0
    assert all(a <= b for a, b in pairwise(found))
    assert found[-1] == pytest.approx((num - 1) / rate)
    assert found == arrival_times(num, rate, burstiness, random.Random(seed))


def test_bursts_vary_more_than_poisson_and_poisson_more_than_even() -> None:
    def variation(burstiness: float) -> float:
        gaps = np.diff(arrival_times(4000, 10, burstiness, random.Random(1)))
        return float(np.std(gaps) / np.mean(gaps))

    assert variation(0.25) == pytest.approx(2, rel=0.15)
    assert variation(1) == pytest.approx(1, rel=0.1)
    assert variation(25) == pytest.approx(0.2, rel=0.1)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrival_times(3, float("inf"), 1, random.Random(1)) == [0, 0, 0]
    assert arrival_times(1, 5, 1, random.Random(1)) == [0]


def whole(
    ttft_s: float = 0.1, tokens: int = 11, tpot_s: float = 0.01, events: int = 11, begun_s: float = 0.0
) -> Outcome:
    last_s = begun_s + ttft_s + tpot_s * (tokens - 1)
    return Outcome(
        begun_s=begun_s,
        first_s=begun_s + ttft_s,
        last_s=last_s,
        ended_s=last_s + 0.001,
        gaps_s=[(last_s - begun_s - ttft_s) / (events - 1)] * (events - 1),
        num_events=events,
        num_wanted=tokens,
        num_prompt_tokens=5,
        num_usage_tokens=tokens,
        status=200,
    )


def refused(seconds: float) -> Outcome:
    return Outcome(ended_s=seconds, status=503, error="status 503: full", code="queue_full", num_wanted=11)


@pytest.mark.parametrize(
    ("words", "outcome", "is_met"),
    [
        (["ttft:101"], whole(), True),
        (["ttft:99"], whole(), False),
        (["tpot:10.1", "ttft:200"], whole(), True),
        (["tpot:9.9", "ttft:200"], whole(), False),
        (["tpot:1"], whole(tokens=1, events=2), True),  # one token has no time per further token
        (["e2el:202"], whole(), True),
        (["e2el:200"], whole(), False),
        (["e2el:5000"], refused(0.001), False),
    ],
)
def test_objectives(words: list[str], outcome: Outcome, is_met: bool) -> None:
    assert Objective.parse(words).is_met(outcome) == is_met


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "itl:5", "ttft:inf"])
def test_objectives_that_are_none(word: str) -> None:
    with pytest.raises(ObjectiveError, match="expected ttft:MS"):
        Objective.parse([word])


def summary_of(*outcomes: Outcome, seconds: float = 2.0) -> Summary:
    return summarize("x", outcomes, seconds, objective=Objective.parse(["ttft:150"]), client_cpu_s=0.022)


def test_a_summary_counts_what_is_whole_and_tells_what_is_not() -> None:
    row = summary_of(whole(), whole(ttft_s=0.3), refused(0.004))
    assert (row.completed, row.failed, row.refused, row.errors) == (2, 1, 1, {"queue_full": 1})
    assert (row.total_output_tokens, row.total_input_tokens) == (22, 10)
    assert (row.output_throughput, row.total_token_throughput) == (11, 16)
    assert (row.request_goodput, row.goodput_share) == (0.5, 0.3333)
    assert row.ttft.p50 == 200
    assert row.tpot.p50 == pytest.approx(10)
    assert row.refusal.max == 4
    assert row.client_cpu_us_per_output_token == 1000


def test_itl_is_neither_divided_nor_padded_where_tokens_come_together() -> None:
    """Ten tokens after the first, at 10 ms each: one event each, or two events of five."""
    one, five = summary_of(whole(events=11)), summary_of(whole(events=3))
    assert one.itl.p50 == pytest.approx(10)
    assert five.itl.p50 == pytest.approx(50)
    assert (one.itl.num, five.itl.num) == (10, 2)
    assert one.tpot == five.tpot
    assert (one.tokens_per_arrival, five.tokens_per_arrival) == (1, 3.667)


def test_tokens_without_usage_are_the_events() -> None:
    outcome = whole()
    outcome.num_usage_tokens = None
    assert summary_of(outcome).total_output_tokens == 11


def test_processes_have_a_total() -> None:
    row = summary_of(whole(), whole())
    add_processes(row, {"a": 0.022, "b": 0.044}, {"a": 1_000_000, "b": 2_000_000}, {"a": 3_000_000, "b": 0})
    assert row.cpu_us_per_output_token == {"a": 1000, "b": 2000, "total": 3000}
    assert row.resident_mb == {"a": 1, "b": 2, "total": 3}
    assert row.peak_resident_mb["total"] == 3


def test_a_load_in_which_nothing_succeeds() -> None:
    row = summary_of(refused(0.1))
    assert (row.output_throughput, row.tokens_per_arrival, row.client_cpu_us_per_output_token) == (0, None, None)
    add_processes(row, {"a": 1.0}, {}, {})
    assert row.cpu_us_per_output_token == {}
