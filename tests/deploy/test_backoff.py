"""Restart delays: at once, then doubling up to a bound, anew after a stable run."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.node.backoff import MAX_DELAY_S, STABLE_AFTER_S, Backoff


def test_first_restart_is_at_once_then_delays_double() -> None:
    backoff = Backoff()
    assert [round(backoff.next_delay(0.01), 3) for _ in range(9)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


def test_a_stable_run_starts_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay(0.1)
    assert backoff.next_delay(STABLE_AFTER_S) == 0
    assert backoff.next_delay(0.1) == 0.1


@given(st.lists(st.floats(min_value=0, max_value=1000), max_size=200))
def test_delay_is_bounded(runs: list[float]) -> None:
    backoff = Backoff()
    for ran in runs:
        delay = backoff.next_delay(ran)
        assert 0 <= delay <= MAX_DELAY_S
        assert delay == 0 or ran < STABLE_AFTER_S
