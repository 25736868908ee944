"""The decisions of readiness: whether a shard advances, when a canary is due, and what its answer says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.canary import ID_PREFIX, Canaries, canary_request
from services.gateway.core.readiness import Readiness
from services.gateway.core.shard_progress import MIN_PATIENCE_S, Pace, ShardProgress
from shared.messages.control import LeaderHeartbeat, ShardLoad
from tests.gateway.stand_in import CARD

BEAT_S = 0.2
INTERVAL_S = 5.0
LONG_AGO = float("-inf")


# ---- the shard's progress


def follow(progress: ShardProgress, loads: list[ShardLoad], now: float = 0.0, takeover: int = 1) -> float:
    """One heartbeat after the other; the time after them."""
    for load in loads:
        now += BEAT_S
        progress.on_load(takeover, load, now)
    return now


def beats(seconds: float, load: ShardLoad) -> list[ShardLoad]:
    return [load] * round(seconds / BEAT_S)


def busy(num_frames: int, num_waiting: int = 0) -> ShardLoad:
    return ShardLoad(num_workers=1, num_running=4, num_waiting=num_waiting, num_folded_frames=num_frames)


def test_frames_that_stop_while_sequences_run_are_a_stall_within_the_patience() -> None:
    progress = ShardProgress()
    now = follow(progress, [busy(frames) for frames in range(1, 20)])
    now = follow(progress, beats(MIN_PATIENCE_S - BEAT_S, busy(19)), now)
    assert not progress.is_stalled
    now = follow(progress, [busy(19)] * 3, now)
    assert progress.is_stalled
    follow(progress, [busy(20)], now)
    assert not progress.is_stalled


def test_a_stall_outlasts_the_fence_that_frees_the_worker_of_its_sequences() -> None:
    """Else a gateway would look ready between the fence and the moment at which the missing worker shows."""
    progress = ShardProgress()
    now = follow(progress, [busy(1), busy(2), *beats(MIN_PATIENCE_S + 0.4, busy(2))])
    fenced = ShardLoad(num_workers=0, num_running=0, num_waiting=4, num_folded_frames=2)
    now = follow(progress, [fenced] * 5, now)
    assert progress.is_stalled
    follow(progress, [ShardLoad(num_workers=0, num_folded_frames=2)], now)
    assert not progress.is_stalled, "whoever waited has gone"


def test_idleness_is_no_stall_and_does_not_count_when_work_begins() -> None:
    progress = ShardProgress()
    now = follow(progress, [busy(1), busy(2)])
    now = follow(progress, beats(60, ShardLoad(num_workers=1, num_folded_frames=2)), now)
    follow(progress, [busy(2), busy(2)], now)
    assert not progress.is_stalled


def test_text_is_progress_even_if_the_leader_counts_nothing_new() -> None:
    progress = ShardProgress()
    now = follow(progress, [busy(1), busy(2)])
    for _ in range(100):
        now = follow(progress, [busy(2)], now)
        progress.on_work(now)
    assert not progress.is_stalled


@pytest.mark.parametrize("load", [busy(0), ShardLoad(num_running=4)])
def test_a_leader_that_counts_no_frames_is_not_judged(load: ShardLoad) -> None:
    progress = ShardProgress()
    follow(progress, beats(60, load))
    assert not progress.is_stalled


def test_a_new_leader_counts_anew() -> None:
    progress = ShardProgress()
    now = follow(progress, [busy(1), busy(1000), *beats(MIN_PATIENCE_S - 0.4, busy(1000))])
    now = follow(progress, [busy(0), busy(1), busy(2)], now, takeover=7)
    assert not progress.is_stalled and progress.advanced_at == now


@given(step_s=st.floats(0.01, 2.9), num_waiting=st.integers(0, 10_000))
def test_busy_is_never_a_stall(step_s: float, num_waiting: int) -> None:
    """Whatever waits, and however long the steps are that a leader lets pass."""
    progress = ShardProgress()
    for beat in range(1, 300):
        now = beat * BEAT_S
        progress.on_load(1, busy(1 + int(now / step_s), num_waiting), now)
        assert not progress.is_stalled


@given(st.lists(st.floats(0, 100), max_size=50))
def test_patience_has_bounds(times_s: list[float]) -> None:
    pace = Pace()
    for time_s in times_s:
        pace.on_done(time_s)
        assert MIN_PATIENCE_S <= pace.patience_s <= 15.0


# ---- canaries


def canaries_of(*models: str, interval_s: float = INTERVAL_S) -> Canaries:
    canaries = Canaries(interval_s)
    canaries.on_models(models)
    return canaries


def due(canaries: Canaries, now: float, num_readers: int = 0, advanced_at: float = LONG_AGO) -> list[str]:
    return canaries.due(now, num_readers=num_readers, shard_advanced_at=advanced_at)


def test_nothing_works_before_the_first_answer() -> None:
    canaries = canaries_of("m")
    assert not canaries.works(0.0)
    assert due(canaries, 0.0) == ["m"]
    canaries.on_sent("m", 0.0)
    assert due(canaries, 100.0) == [], "one at a time"
    canaries.on_answered("m", 0.1)
    assert canaries.works(0.1)


def test_a_canary_is_sent_only_after_an_interval_without_text() -> None:
    canaries = canaries_of("m")
    canaries.on_sent("m", 0.0)
    canaries.on_answered("m", 0.1)
    for number in range(1, 100):
        assert due(canaries, number * 1.0) == []
        canaries.on_tokens("m", number, number * 1.0)
    canaries.on_tokens("m", 99, 101.0)
    assert due(canaries, 99.0 + INTERVAL_S - 0.1) == []
    assert due(canaries, 99.0 + INTERVAL_S) == ["m"]


def test_growing_frames_make_a_canary_needless_unless_a_client_waits_here() -> None:
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    assert due(canaries, 60.0, advanced_at=59.9) == []
    assert due(canaries, 60.0, advanced_at=59.9, num_readers=1) == ["m"]
    assert due(canaries, 60.0, advanced_at=50.0) == ["m"]


def test_an_unanswered_canary_counts_after_the_patience_and_its_late_answer_is_the_recovery() -> None:
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    canaries.on_sent("m", 5.0)
    assert canaries.works(5.0 + MIN_PATIENCE_S)
    assert not canaries.works(5.1 + MIN_PATIENCE_S)
    canaries.on_answered("m", 11.0)
    assert canaries.works(11.0)
    assert canaries.patience_s == MIN_PATIENCE_S, "an outage teaches nothing of the usual time"


def test_text_for_a_client_outdoes_a_canary_on_its_way() -> None:
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    canaries.on_sent("m", 5.0)
    canaries.on_tokens("m", 2, 12.0)
    assert canaries.works(13.0)


def test_a_failed_canary_is_sent_again_soon_and_says_why() -> None:
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    canaries.on_sent("m", 5.0)
    canaries.on_failed("m", "503 no", 5.2)
    assert not canaries.works(5.2)
    assert canaries.states(6.2)["m"].error == "503 no"
    assert due(canaries, 5.9) == [] and due(canaries, 6.3) == ["m"]
    canaries.on_sent("m", 6.3)
    assert not canaries.works(6.3)
    canaries.on_answered("m", 6.4)
    assert canaries.works(6.4) and canaries.states(6.4)["m"].error == ""
    assert (canaries.num_sent, canaries.num_failed) == (2, 1)


def test_a_refusal_for_the_queue_proves_work_only_if_the_shard_does_some() -> None:
    canaries = canaries_of("m")
    canaries.on_sent("m", 0.0)
    canaries.on_busy("m", 0.1, shard_advanced_at=LONG_AGO)
    assert not canaries.works(0.1)
    canaries.on_sent("m", 2.0)
    canaries.on_busy("m", 2.1, shard_advanced_at=2.0)
    assert canaries.works(2.1)


def test_a_refusal_for_the_queue_is_no_failure() -> None:
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    canaries.on_sent("m", 5.0)
    canaries.on_busy("m", 5.1, shard_advanced_at=LONG_AGO)
    assert canaries.works(5.1) and canaries.num_failed == 0


def test_a_canary_that_waits_in_a_busy_shard_is_cancelled_once_and_in_time() -> None:
    """In time to see the end come back before the model would count as not working."""
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    canaries.on_sent("m", 5.0)
    assert canaries.to_cancel(6.9, shard_advanced_at=6.8) == []
    assert canaries.to_cancel(7.0, shard_advanced_at=4.9) == [], "nothing moves: it stays as the first sign of recovery"
    assert canaries.to_cancel(7.0, shard_advanced_at=6.9) == ["m"]
    assert canaries.to_cancel(7.1, shard_advanced_at=7.0) == []
    canaries.on_busy("m", 7.2, shard_advanced_at=7.1)
    assert canaries.works(7.2 + INTERVAL_S)


def test_what_comes_back_must_show_that_it_works() -> None:
    canaries = canaries_of("m")
    canaries.on_tokens("m", 1, 0.0)
    canaries.on_parts_missing()
    assert not canaries.works(0.1)
    assert due(canaries, 0.1, advanced_at=0.0) == ["m"]


def test_one_model_that_fails_does_not_take_the_others_down() -> None:
    canaries = canaries_of("a", "b")
    canaries.on_tokens("a", 1, 0.0)
    canaries.on_sent("b", 0.0)
    canaries.on_failed("b", "500 broken", 0.1)
    assert canaries.works(0.2)
    assert {model: state.works for model, state in canaries.states(0.2).items()} == {"a": True, "b": False}
    canaries.on_models(["b"])
    assert not canaries.works(0.2)


def test_without_an_interval_nothing_is_sent_nor_judged() -> None:
    canaries = canaries_of("m", interval_s=0)
    assert canaries.works(1e9) and due(canaries, 1e9) == []


def test_the_request_is_small_first_in_line_and_ends_with_its_gateway() -> None:
    request = canary_request(CARD, "ab" * 12, "gateway-1", 1e9)
    assert request.request_id == ID_PREFIX + "ab" * 12 and len(request.request_id) == 32
    assert (request.owner, request.keep_s, request.attach) == ("gateway-1", 0.0, False)
    assert request.params == {"max_tokens": 1, "temperature": 0}
    assert request.priority < -(10**9)


def test_lacks_names_everything() -> None:
    readiness = Readiness()
    canaries = canaries_of("m")
    parts = ["log", "scheduler", "worker", "tokenizer", "detokenizer"]
    assert readiness.lacks(0.0, canaries) == [*parts, "canary"]
    full = ShardLoad(num_workers=1, num_running=1, num_folded_frames=1, log_full=True)
    for now in (0.0, 10.0):
        readiness.on_leader(LeaderHeartbeat(shard="s0", leader="a", takeover=1, load=full), now)
    assert readiness.lacks(10.0, canaries) == ["log", "tokenizer", "detokenizer", "log_space", "progress", "canary"]
