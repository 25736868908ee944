"""Rule 5: plans are executed in step order, each once, in the newest epoch only."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.core.plan_queue import PlanQueue
from shared.messages.packed import INT32, UINT64, pack
from shared.messages.pipeline import EpochStart, StepPlan
from shared.messages.plan_parts import split_plan
from tests.worker.plans import Item, make_plan

EPOCH = 5


def opened(epoch: int = EPOCH) -> PlanQueue:
    queue = PlanQueue()
    assert queue.on_epoch_start(EpochStart(epoch=epoch)) == "opened"
    return queue


def taken(queue: PlanQueue) -> list[int]:
    steps = []
    while (plan := queue.take()) is not None:
        steps.append(plan.step)
    return steps


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rule_05_every_step_once_and_in_order(data: st.DataObject) -> None:
    num_steps = 6
    parts = {step: split_plan(large_plan(step), 300) for step in range(1, num_steps + 1)}
    messages = [part for step in parts for part in parts[step]]
    queue, executed = opened(), []
    sent = data.draw(st.lists(st.sampled_from(messages), max_size=80))
    for part in sent:
        is_beyond = part.step > queue.next_plan
        assert (queue.on_plan(part) == "gap") == is_beyond
        executed += taken(queue)
    for step in range(queue.next_plan, num_steps + 1):  # the leader sends its window again
        for part in parts[step]:
            assert queue.on_plan(part) != "gap"
        executed += taken(queue)
    assert executed == list(range(1, num_steps + 1))


def large_plan(step: int) -> StepPlan:
    return make_plan(EPOCH, step, [Item(9, 0, 120, list(range(120)), -1, list(range(8)))])


def test_rule_05_a_plan_in_parts_is_joined_in_any_order() -> None:
    parts = split_plan(large_plan(1), 300)
    assert len(parts) > 2
    queue = opened()
    for part in reversed(parts):
        assert queue.take() is None
        assert queue.on_plan(part) == "taken"
    plan = queue.take()
    assert plan is not None
    assert plan.token_ids.tolist() == list(range(120))
    assert plan.sequences.tolist() == [9]


def test_rule_05_a_plan_beyond_the_next_is_a_gap() -> None:
    queue = opened()
    assert queue.on_plan(make_plan(EPOCH, 2)) == "gap"
    assert queue.next_plan == 1
    assert queue.on_plan(make_plan(EPOCH, 1)) == "taken"
    assert queue.on_plan(make_plan(EPOCH, 1)) == "repeated"
    assert queue.next_plan == 2


def test_rule_05_a_missing_part_is_a_gap_for_the_next_plan() -> None:
    queue = opened()
    assert queue.on_plan(split_plan(large_plan(1), 300)[0]) == "taken"
    assert queue.on_plan(make_plan(EPOCH, 2)) == "gap"


def test_rule_05_other_epochs_are_dropped() -> None:
    queue = opened()
    assert queue.on_plan(make_plan(EPOCH - 1, 1)) == "stale_epoch"
    assert queue.on_plan(make_plan(EPOCH + 1, 1)) == "unopened_epoch"
    assert queue.on_epoch_start(EpochStart(epoch=EPOCH - 1)) == "stale_epoch"
    assert queue.epoch == EPOCH
    assert queue.take() is None


def test_rule_10_a_new_epoch_drops_queued_plans_and_owes_a_report() -> None:
    queue = opened()
    assert queue.report_due
    queue.report_due = False
    queue.on_plan(make_plan(EPOCH, 1))
    queue.on_plan(split_plan(large_plan(2), 300)[0])
    assert queue.on_epoch_start(EpochStart(epoch=EPOCH + 1)) == "opened"
    assert (queue.take(), queue.next_plan, queue.report_due) == (None, 1, True)


def test_rule_10_a_repeated_epoch_asks_for_the_report_again_until_a_plan_shows_that_it_arrived() -> None:
    queue = opened()
    queue.report_due = False
    assert queue.on_epoch_start(EpochStart(epoch=EPOCH)) == "repeated"
    assert queue.report_due
    queue.report_due = False
    queue.on_plan(make_plan(EPOCH, 1))
    assert queue.on_epoch_start(EpochStart(epoch=EPOCH)) == "repeated"
    assert not queue.report_due
    assert queue.num_queued == 1


def test_columns_that_do_not_fit_each_other_are_malformed() -> None:
    short = StepPlan(epoch=EPOCH, step=1, sequences=pack(UINT64, [1, 2]), start=pack(INT32, [0]))
    ragged = StepPlan(epoch=EPOCH, step=1, sequences=b"12345")
    twice = make_plan(EPOCH, 1, [Item(3, 0, 1, [5]), Item(3, 1, 1, [5])])
    numbered = StepPlan(epoch=EPOCH, step=1, part=3, num_parts=2)
    wrong_sum = StepPlan(
        epoch=EPOCH,
        step=1,
        sequences=pack(UINT64, [1, 2]),
        start=pack(INT32, [0, 0]),
        num_scheduled=pack(INT32, [1, 1]),
        num_given=pack(INT32, [3, -1]),
        position=pack(INT32, [0, 0]),
        num_new_blocks=pack(INT32, [0, 0]),
        token_ids=pack(INT32, [1, 2]),
    )
    for bad in (short, ragged, twice, numbered, wrong_sum):
        queue = opened()
        assert queue.on_plan(bad) == "malformed"
        assert queue.next_plan == 1
        assert queue.on_plan(make_plan(EPOCH, 1)) == "taken"
