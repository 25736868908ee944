"""Rules 2, 3 and 5 as the leader applies them, on a clock of the test's own."""

import pytest

from services.scheduler.core.leadership import LEADER_SILENCE_S, LeaderWatch
from services.scheduler.core.worker_link import (
    MIN_STALL_S,
    PLANS_AHEAD,
    RESEND_S,
    SILENCE_S,
    UNFOLDED_S,
    LinkState,
    WorkerLink,
)
from shared.messages.control import WorkerHeartbeat

EPOCH = 7


def heartbeat(**values: object) -> WorkerHeartbeat:
    fields: dict[str, object] = {
        "worker": "w1",
        "epoch": EPOCH,
        "next_plan": 1,
        "started": 0,
        "finished": 0,
        "idle": True,
        "leaving": False,
        "model": "m",
        "model_version": "1",
        "num_blocks": 10,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
    }
    return WorkerHeartbeat(**(fields | values))  # type: ignore[arg-type]


@pytest.fixture
def link() -> WorkerLink:
    opened = WorkerLink(heartbeat(), EPOCH, now=0.0)
    opened.open(0.0)
    return opened


def beat(link: WorkerLink, now: float, **values: object) -> None:
    link.on_heartbeat(heartbeat(**values), now)


def test_rule_02_only_the_folded_leaders_heartbeats_count() -> None:
    watch = LeaderWatch(0.0)
    watch.on_heartbeat("zombie", "s1", 0.9)
    assert watch.is_silent(LEADER_SILENCE_S + 0.1)
    watch.on_heartbeat("s1", "s1", 0.9)
    assert not watch.is_silent(LEADER_SILENCE_S + 0.1)


def test_rule_02_a_pause_of_ones_own_resets_the_clock() -> None:
    watch = LeaderWatch(0.0)
    watch.reset(5.0)
    assert not watch.is_silent(5.9)


def test_rule_02_a_leader_that_leaves_is_followed_at_once() -> None:
    watch = LeaderWatch(0.0)
    watch.on_heartbeat("zombie", "s1", 0.1, leaving=True)
    assert not watch.takeover_due(0.1)
    watch.on_heartbeat("s1", "s1", 0.1, leaving=True)
    assert watch.takeover_due(0.1)
    watch.reset(0.2)
    assert not watch.takeover_due(0.2), "somebody has taken over"


def test_rule_03_a_silent_worker_is_fenced(link: WorkerLink) -> None:
    assert link.fence_reason(SILENCE_S) is None
    assert link.fence_reason(SILENCE_S + 0.01) == "silent"


def test_rule_03_a_finished_step_must_be_folded_within_half_a_second(link: WorkerLink) -> None:
    link.on_sent([b"p1"], 0.0)
    beat(link, 0.2, finished=1, next_plan=2)
    beat(link, 0.2 + UNFOLDED_S, finished=1, next_plan=2)
    assert link.fence_reason(0.2 + UNFOLDED_S) is None
    assert link.fence_reason(0.3 + UNFOLDED_S) == "finished step not folded"
    link.on_folded(1, 0.3 + UNFOLDED_S)
    assert link.fence_reason(0.3 + UNFOLDED_S) is None


def test_rule_03_plans_without_a_folded_frame_are_a_stall_started_or_not(link: WorkerLink) -> None:
    link.on_sent([b"p1"], 1.0)
    now = 1.0
    while now < 1.0 + MIN_STALL_S:
        now += 0.2
        beat(link, now, idle=False)
    assert link.fence_reason(now + 0.01) == "no progress"


def test_rule_03_a_slow_step_is_no_stall(link: WorkerLink) -> None:
    """A step of 1 s after another of 1 s: without an estimate of its own this would livelock."""
    now = 0.0
    for step in range(1, 5):
        link.on_sent([b"p"], now)
        for _ in range(10):
            now += 0.1
            beat(link, now, idle=False, next_plan=step + 1)
            assert link.fence_reason(now) is None
        link.on_folded(step, now)
    assert link.step_estimate_s >= 0.9


def test_rule_03_an_idle_worker_makes_no_progress_and_is_none_the_worse(link: WorkerLink) -> None:
    now = 0.0
    for _ in range(100):
        now += 0.2
        beat(link, now)
        assert link.fence_reason(now) is None


def test_rule_03_the_leaders_own_pause_is_not_held_against_the_worker(link: WorkerLink) -> None:
    link.on_sent([b"p1"], 0.0)
    link.reset_clocks(100.0)
    assert link.fence_reason(100.5) is None


def test_rule_03_a_fenced_worker_gets_no_plan_before_it_reported(link: WorkerLink) -> None:
    link.on_fencing("silent", 1.0)
    assert not link.has_room
    link.start_epoch(EPOCH + 1, 1.1)
    assert link.state is LinkState.OPENING and not link.has_room
    link.open(2.0)
    assert link.has_room and link.next_step == 1


def test_rule_03_a_failed_fence_is_tried_again_later_and_later(link: WorkerLink) -> None:
    assert link.fence_reason(2.0) == "silent"
    link.on_fencing("silent", 2.0)
    link.on_fence_failed()
    assert link.state is LinkState.OPEN
    assert link.fence_reason(2.4) is None and link.fence_reason(2.6) == "silent"
    link.on_fencing("silent", 2.6)
    link.on_fence_failed()
    assert link.fence_reason(3.4) is None and link.fence_reason(3.7) == "silent"


def test_rule_05_a_gap_is_sent_again_from_where_it_begins(link: WorkerLink) -> None:
    link.on_sent([b"p1"], 0.0)
    link.on_sent([b"p2a", b"p2b"], 0.0)
    assert not link.has_room and link.sent - link.folded == PLANS_AHEAD
    assert list(link.resend_from(1, 0.1)) == [b"p1", b"p2a", b"p2b"]
    link.on_folded(1, 0.2)
    assert list(link.resend_from(1, 0.2)) == [b"p2a", b"p2b"] and link.has_room


def test_rule_05_lost_last_plans_show_in_the_heartbeat(link: WorkerLink) -> None:
    link.on_sent([b"p1"], 0.0)
    beat(link, RESEND_S, next_plan=1)
    assert link.lagging_step(RESEND_S) is None
    assert link.lagging_step(RESEND_S + 0.01) == 1
    beat(link, 0.5, next_plan=2)
    assert link.lagging_step(0.5) is None


def test_rule_05_a_new_epoch_is_announced_until_it_is_reported() -> None:
    link = WorkerLink(heartbeat(epoch=0), EPOCH, now=0.0)
    assert link.announcement_due(0.0) and not link.announcement_due(0.1) and link.announcement_due(0.3)
    link.open(0.4)
    assert not link.announcement_due(1.0)
