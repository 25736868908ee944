"""Rule 13: tokenizers refuse early what the shard cannot take."""

from typing import Any

import pytest

from services.tokenizer.config import TokenizerConfig
from services.tokenizer.core.admission import ShardView
from shared.messages.control import LeaderHeartbeat, ShardLoad
from shared.queue_limits import QueueLimits

LIMITS: dict[str, Any] = {"limits": QueueLimits(max_num_reqs=10, max_num_tokens=1000), "leader_timeout_s": 5.0}


def heartbeat(takeover: int = 1, **load: Any) -> LeaderHeartbeat:
    return LeaderHeartbeat(shard="s0", leader="l", takeover=takeover, load=ShardLoad(**{"num_workers": 2, **load}))


def test_rule_13_accepts_under_a_live_leader_with_workers() -> None:
    view = ShardView(0.0)
    view.on_heartbeat(heartbeat(num_queued_reqs=9, num_queued_tokens=900, max_model_len=77), 1.0)
    assert view.refusal(2.0, **LIMITS) is None
    assert view.refusal(2.0, num_prompt_tokens=100, **LIMITS) is None
    assert view.max_model_len == 77


@pytest.mark.parametrize(
    ("load", "code"),
    [
        ({"num_workers": 0}, "no_worker"),
        ({"num_queued_reqs": 10}, "queue_full"),
        ({"num_queued_reqs": 10**9}, "queue_full"),
        ({"num_queued_tokens": 901}, "queue_full"),
        ({"num_queued_tokens": 10**12}, "queue_full"),
        ({"log_full": True}, "log_full"),
    ],
)
def test_rule_13_refuses_early_with_503_and_a_time_to_retry(load: dict[str, Any], code: str) -> None:
    view = ShardView(0.0)
    view.on_heartbeat(heartbeat(**load), 1.0)
    refusal = view.refusal(1.1, num_prompt_tokens=100, **LIMITS)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (503, code)
    assert refusal.retry_after_s is not None and 0 < refusal.retry_after_s <= 30


def test_a_burst_between_heartbeats_counts() -> None:
    view = ShardView(0.0)
    view.on_heartbeat(heartbeat(num_queued_reqs=8), 1.0)
    view.on_accepting(5)
    view.on_accepting(5)
    refusal = view.refusal(1.1, **LIMITS)
    assert refusal is not None and refusal.code == "queue_full"
    view.on_heartbeat(heartbeat(num_queued_reqs=8), 1.2)
    assert view.refusal(1.2, **LIMITS) is None


def test_tokens_of_a_burst_between_heartbeats_count() -> None:
    view = ShardView(0.0)
    view.on_heartbeat(heartbeat(), 1.0)
    view.on_accepting(600)
    assert view.refusal(1.1, num_prompt_tokens=400, **LIMITS) is None
    refusal = view.refusal(1.1, num_prompt_tokens=401, **LIMITS)
    assert refusal is not None and refusal.code == "queue_full"
    view.on_heartbeat(heartbeat(), 1.2)
    assert view.refusal(1.2, num_prompt_tokens=401, **LIMITS) is None


def test_a_silent_leader_is_borne_for_a_while() -> None:
    view = ShardView(0.0)
    assert (view.refusal(1.0, **LIMITS) or view).code == "starting"  # type: ignore[union-attr]
    view.on_heartbeat(heartbeat(), 1.0)
    assert view.refusal(5.9, **LIMITS) is None
    refusal = view.refusal(6.1, **LIMITS)
    assert refusal is not None and refusal.code == "no_scheduler"


def test_a_former_leaders_word_does_not_count_while_the_new_one_speaks() -> None:
    view = ShardView(0.0)
    view.on_heartbeat(heartbeat(takeover=9), 1.0)
    view.on_heartbeat(heartbeat(takeover=4, log_full=True), 1.5)
    assert view.refusal(1.6, **LIMITS) is None
    view.on_heartbeat(heartbeat(takeover=4, log_full=True), 2.5)
    refusal = view.refusal(2.6, **LIMITS)
    assert refusal is not None and refusal.code == "log_full"


def test_a_lack_of_workers_is_borne_for_a_while() -> None:
    """A new leader has none at first; the only one may be starting again."""
    view = ShardView(0.0)
    view.on_heartbeat(heartbeat(), 1.0)
    view.on_heartbeat(heartbeat(num_workers=0), 5.9)
    assert view.refusal(5.9, **LIMITS) is None
    refusal = view.refusal(6.1, **LIMITS)
    assert refusal is not None and refusal.code == "no_worker"
    view.on_heartbeat(heartbeat(), 6.2)
    assert view.refusal(6.2, **LIMITS) is None


def test_rule_13_as_many_may_come_at_once_as_may_wait() -> None:
    """Else a burst that the queue has room for would be refused on its way there."""
    config = TokenizerConfig()
    assert config.max_concurrent_requests >= config.max_num_queued_reqs
