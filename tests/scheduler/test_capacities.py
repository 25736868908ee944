"""Workers of one model that differ in what they can run at all."""

import pytest

from tests.scheduler.asked import fill_unnoticed, submit
from tests.scheduler.simulated_shard import SimulatedShard

PROMPT = list(range(100, 110))
TOO_SMALL = pytest.mark.parametrize("small", [{"num_blocks": 4}, {"max_model_len": 10}])


@TOO_SMALL
@pytest.mark.parametrize("is_begun", [False, True])
def test_rule_13_what_only_a_worker_that_is_gone_could_run_is_rejected_once_that_is_forgotten(
    small: dict[str, int], is_begun: bool
) -> None:
    shard = SimulatedShard()
    shard.join("big")
    shard.join("small", **small)
    state, fits = submit(shard, PROMPT, 8), submit(shard, PROMPT[:4], 4)
    if is_begun:
        shard.turn()
    shard.fence("big", died=True, is_forgotten=False)
    while fits.end is None:
        shard.turn()
    shard.check()
    assert state.end is None and not shard.verdicts, "it may come back"
    shard.forget("big")
    assert [(verdict.sequence.id, verdict.reason) for verdict in shard.verdicts] == [(state.id, "rejected")]
    assert not shard.scheduler.num_waiting
    shard.check()


@TOO_SMALL
def test_what_only_a_worker_that_is_gone_could_run_goes_on_at_one_that_comes_in_time(small: dict[str, int]) -> None:
    shard = SimulatedShard()
    shard.join("big")
    shard.join("small", **small)
    state = submit(shard, PROMPT, 8)
    shard.turn()
    shard.fence("big", died=True, is_forgotten=False)
    late = submit(shard, PROMPT, 8)
    shard.fence("small")
    shard.join("next")
    shard.forget("big")
    shard.run()
    assert not shard.verdicts and not shard.refused
    assert len(state.tokens) == len(late.tokens) == 8


@TOO_SMALL
def test_the_first_worker_to_report_after_a_take_over_speaks_for_itself_alone(small: dict[str, int]) -> None:
    shard = SimulatedShard()
    shard.join("small", **small)
    shard.join("big")
    state = submit(shard, PROMPT, 8)
    shard.turn()
    shard.take_over()
    shard.run()
    assert not shard.verdicts and len(state.tokens) == 8


def test_without_any_worker_all_wait_though_one_was_forgotten() -> None:
    shard = SimulatedShard()
    shard.join("w")
    state = submit(shard, PROMPT, 8)
    shard.fence("w", died=True)
    assert state.end is None and not shard.verdicts
    shard.join("next")
    shard.run()
    assert len(state.tokens) == 8


@TOO_SMALL
def test_a_draining_worker_takes_back_what_it_preempted_and_no_other_can_run(small: dict[str, int]) -> None:
    shard = SimulatedShard(watermark=0.0)
    shard.join("old", num_blocks=6, max_num_batched_tokens=64)
    states = [submit(shard, [100 + number] * 10, 12) for number in range(2)]
    shard.turn()
    shard.join("small", **small)
    shard.scheduler.set_accepting("old", False)
    shard.run()
    shard.check()
    assert shard.scheduler.num_preemptions > 0
    assert [len(state.tokens) for state in states] == [12, 12]


def test_a_sequence_stays_at_a_draining_worker_where_others_would_cut_it_at_once() -> None:
    shard = SimulatedShard()
    shard.join("old", max_model_len=40, max_num_batched_tokens=4, enable_prefix_caching=False)
    state = submit(shard, PROMPT, 20)
    while len(state.tokens) < 8:
        shard.turn()
    shard.join("next", max_model_len=15)
    shard.scheduler.set_accepting("old", False)
    shard.run()
    assert len(state.tokens) == 20


def test_a_sequence_that_is_full_here_and_does_not_fit_there_has_its_end() -> None:
    shard = SimulatedShard()
    shard.join("short", num_blocks=64, max_model_len=14)
    state = submit(shard, PROMPT, 100)
    fill_unnoticed(shard, state, 4)
    shard.join("small", num_blocks=4, max_model_len=200)
    shard.take_over()
    assert (state.end, state.reason) == (4, "length")
    shard.check()
