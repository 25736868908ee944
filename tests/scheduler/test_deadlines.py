"""The heap of due times, against a dictionary that is searched."""

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.deadlines import MIN_COMPACT, Deadlines

IDS = st.sampled_from([f"r{number}" for number in range(8)])
TIMES = st.integers(0, 30)
SETTING = st.tuples(st.just("set"), IDS, TIMES)
DISCARDING = st.tuples(st.just("discard"), IDS, st.just(0))
POPPING = st.tuples(st.just("pop"), st.just(""), TIMES)


@given(st.lists(st.one_of(SETTING, DISCARDING, POPPING), max_size=300))
def test_each_is_due_at_its_newest_time_and_once(calls: list[tuple[str, str, int]]) -> None:
    deadlines = Deadlines()
    expected: dict[str, int] = {}
    for call, request_id, time_ns in calls:
        if call == "set":
            deadlines.set(request_id, time_ns)
            expected[request_id] = time_ns
        elif call == "discard":
            deadlines.discard(request_id)
            expected.pop(request_id, None)
        else:
            due = sorted((due_ns, each) for each, due_ns in expected.items() if due_ns <= time_ns)
            assert deadlines.pop_due(time_ns) == [each for _, each in due]
            for _, each in due:
                del expected[each]
        assert len(deadlines) == len(expected)
        assert deadlines.heap_size <= max(MIN_COMPACT, 2 * len(expected))


def test_requests_that_ended_long_before_their_deadline_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(100_000):
        deadlines.set(f"{number}", 10**18 + number)
        if number >= 10:
            deadlines.discard(f"{number - 10}")
        assert deadlines.heap_size <= MIN_COMPACT
    assert deadlines.pop_due(2 * 10**18) == [f"{number}" for number in range(99_990, 100_000)]
