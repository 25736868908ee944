"""Medians, ratios and goals of a comparison with peers."""

import pytest

from bench.core.outcome import Outcome
from bench.core.summary import Summary, summarize
from bench.peers.figures import CPU, RESIDENT, THROUGHPUT, TTFT_P50, Ratio, Spread, ratio, rows_named, spread
from bench.peers.goals import ENGINE, Goal, judge


def row(name: str = "W1", throughput: float = 100.0, ttft_s: float = 0.1, resident: float = 0.0) -> Summary:
    """One round in which a request of 100 tokens had this time to first token."""
    outcome = Outcome(begun_s=0.0, first_s=ttft_s, last_s=1.0, ended_s=1.0, gaps_s=[0.01] * 99, num_events=100)
    found = summarize(name, [outcome], 100 / throughput, max_concurrency=1)
    if resident:
        found.resident_mb = {"server": resident, "total": resident}
    return found


def test_spread_has_median_and_extremes() -> None:
    rows = [row(throughput=each) for each in (100, 300, 200)]
    assert spread(rows, THROUGHPUT) == Spread(200, 100, 300, 3)
    assert spread([row(throughput=each) for each in (100, 200)], THROUGHPUT) == Spread(150, 100, 200, 2)


def test_figure_that_nobody_measured_has_neither_spread_nor_ratio() -> None:
    assert spread([row()], CPU) is None
    assert spread([], THROUGHPUT) is None
    assert ratio([row()], [row(resident=5)], RESIDENT) is None
    assert ratio([row(resident=5)], [row()], RESIDENT) is None


def test_ratio_is_that_of_medians_with_extremes_round_by_round() -> None:
    ours = [row(throughput=each) for each in (200, 400, 300)]
    peer = [row(throughput=each) for each in (100, 100, 200)]
    assert ratio(ours, peer, THROUGHPUT) == Ratio(3.0, 1.5, 4.0)


def test_ratio_of_times_is_ours_by_the_peers_too() -> None:
    found = ratio([row(ttft_s=0.05)], [row(ttft_s=0.1)], TTFT_P50)
    assert found is not None and found.of_medians == pytest.approx(0.5)


def test_rows_of_one_plan() -> None:
    rows = [row("W1"), row("W2"), row("W1", 50)]
    assert rows_named(rows, "W1") == [rows[0], rows[2]]


@pytest.mark.parametrize(("throughput", "status"), [(179, "missed"), (180, "met"), (250, "stretch")])
def test_goal_of_a_figure_of_which_more_is_better(throughput: float, status: str) -> None:
    goal = Goal("W1", "tokenbus bf16", "vllm", THROUGHPUT, 1.8, 2.5)
    [verdict] = judge([goal], {"tokenbus bf16": [row(throughput=throughput)], "vllm": [row(throughput=100)]})
    assert verdict.status == status
    assert verdict.got == pytest.approx(throughput / 100, rel=0.01)


@pytest.mark.parametrize(("resident", "status"), [(500, "met"), (501, "missed")])
def test_goal_of_a_figure_of_which_less_is_better(resident: float, status: str) -> None:
    goal = Goal("W1", "tokenbus bf16", "vllm", RESIDENT, 0.5)
    [verdict] = judge([goal], {"tokenbus bf16": [row(resident=resident)], "vllm": [row(resident=1000)]})
    assert verdict.status == status


def test_goal_against_the_better_of_two_peers() -> None:
    goal = Goal("W2", "ours", "server or bench", THROUGHPUT, 2.0)
    rows = {"ours": [row("W2", 300)], "server": [row("W2", 100)], "bench": [row("W2", 200)]}
    [verdict] = judge([goal], rows)
    assert (verdict.peer, verdict.status) == ("bench", "missed")
    assert verdict.got == pytest.approx(1.5)
    [verdict] = judge([goal], {name: rows[name] for name in ("ours", "server")})
    assert (verdict.peer, verdict.status) == ("server", "met")


def test_limit_on_ours_alone() -> None:
    [verdict] = judge([Goal("W1", "ours", "", THROUGHPUT, 90.0, 200.0)], {"ours": [row(throughput=100)]})
    assert (verdict.status, verdict.got) == ("met", pytest.approx(100))


def test_figure_that_is_missing_is_not_a_goal_that_is_met() -> None:
    goal = Goal("W1", "ours", "peer", CPU, 1.0)
    [verdict] = judge([goal], {"ours": [row()], "peer": [row()]})
    assert (verdict.status, verdict.got) == ("not measured", None)


def test_goals_against_peers_that_were_not_asked_for_are_left_out() -> None:
    assert judge(ENGINE, {"tokenbus gguf": [row("W1")], "llama.cpp": [row("W1")]})[0].peer == "llama.cpp"
    assert {each.plan for each in judge(ENGINE, {"tokenbus gguf": [row("W1")], "llama.cpp": [row("W1")]})} == {"W1"}


def test_peer_that_was_given_up_leaves_its_goals_unmeasured() -> None:
    found = judge([Goal("W1", "ours", "peer", THROUGHPUT, 1.0)], {"ours": [row()], "peer": []})
    assert [each.status for each in found] == ["not measured"]
