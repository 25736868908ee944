"""The short way through steps that were foretold computes exactly what the long way computes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor
from services.worker.engine.interface import StepOutput
from shared.messages.pipeline import Rows, StepPlan
from shared.messages.sampling import Sampling
from tests.worker.engines import BLOCK_SIZE, NUM_BLOCKS, VOCAB_SIZE, MemoryEngine, make_executor
from tests.worker.plans import Item, Planned, SmallLeader, make_plan, rows_of

TOKEN_COLUMNS = ("token_ids", "positions", "slot_mapping")
SEQUENCE_COLUMNS = ("cu_seqlens_q", "context_lens", "block_tables")
ROW_COLUMNS = ("sampled", "output_positions")


def leader_of(*prompts: list[int], max_tokens: int = 40, eos: int = VOCAB_SIZE - 1) -> SmallLeader:
    leader = SmallLeader(BLOCK_SIZE)
    leader.open_epoch(1)
    for number, prompt in enumerate(prompts):
        leader.add(Planned(number, prompt, Sampling(max_tokens=max_tokens, eos_token_ids=(eos,))))
    return leader


def plans_of(leader: SmallLeader, count: int) -> list[StepPlan]:
    plans = [leader.make_plan() for _ in range(count)]
    return [plan for plan in plans if plan is not None]


def run_short(executor: PlanExecutor, engine: MemoryEngine, plan: StepPlan) -> tuple[Rows, bool]:
    step = executor.begin(PlanColumns(plan))
    assert step.batch is not None
    return executor.finish(step, engine.step(step.batch)), step.run is not None


def run_long(executor: PlanExecutor, engine: MemoryEngine, plan: StepPlan) -> Rows:
    """Without the memory of the step before, no plan is foretold."""
    executor._last = None
    frame, was_foretold = run_short(executor, engine, plan)
    assert not was_foretold
    return frame


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(6, VOCAB_SIZE - 1), min_size=1, max_size=9), min_size=1, max_size=5))
def test_both_ways_make_the_same_frames_and_leave_the_same_blocks(prompts: list[list[int]]) -> None:
    plans = plans_of(leader_of(*prompts), 30)
    short, short_engine, long, long_engine = make_executor(), MemoryEngine(), make_executor(), MemoryEngine()
    for engine in (short_engine, long_engine):
        engine.next_token = lambda context: sum(context) % (VOCAB_SIZE - 1)
    num_foretold = 0
    for plan in plans:
        frame, was_foretold = run_short(short, short_engine, plan)
        num_foretold += was_foretold
        assert frame == run_long(long, long_engine, plan)
        a, b = short_engine.batches[-1], long_engine.batches[-1]
        for name in TOKEN_COLUMNS + SEQUENCE_COLUMNS + ROW_COLUMNS:
            left, right = getattr(a, name), getattr(b, name)
            assert left.dtype == right.dtype
            assert np.array_equal(left, right), name
        assert a.rows == b.rows
    assert num_foretold > 15
    assert short.open_epoch() == long.open_epoch()


def test_it_ends_with_a_sequence_and_begins_again_without_it() -> None:
    leader = leader_of([10, 11], [12, 13, 14])
    leader.sequences[0].sampling = Sampling(max_tokens=6)
    executor, engine = make_executor(), MemoryEngine()
    engine.next_token = lambda context: 20 + len(context)
    foretold = [run_short(executor, engine, plan)[1] for plan in plans_of(leader, 14)]
    assert foretold == [False, False, *[True] * 4, False, *[True] * 7], "the prompt, then the first single tokens"
    assert executor.table.num_unfinished == 1


def test_eos_ends_it_at_once() -> None:
    executor, engine = make_executor(), MemoryEngine()
    plans = plans_of(leader_of([10, 11], [12], eos=5), 8)
    engine.next_token = lambda context: 5 if context == [12, 21, 22, 23] else 20 + len(context)
    frames = [run_short(executor, engine, plan)[0] for plan in plans]
    assert [len(rows_of(frame)) for frame in frames] == [2, 2, 2, 2, 1, 1, 1, 1]
    assert rows_of(frames[3])[1].token == 5


def test_min_tokens_holds_in_it() -> None:
    executor, engine = make_executor(), MemoryEngine()
    leader = SmallLeader(BLOCK_SIZE)
    leader.open_epoch(1)
    leader.add(Planned(1, [10, 11], Sampling(max_tokens=9, min_tokens=5, eos_token_ids=(5,))))
    engine.next_token = lambda context: 5
    frames = [run_short(executor, engine, plan)[0] for plan in plans_of(leader, 6)]
    assert [len(rows_of(frame)) for frame in frames] == [1] * 6
    assert executor.table.num_unfinished == 0, "the sixth may be EOS"


def test_a_spare_block_is_used_before_a_new_one() -> None:
    """A leader may give blocks early; then a new block is not the next one to be filled."""
    executor, engine = make_executor(), MemoryEngine()
    engine.next_token = lambda context: 20 + len(context)
    new = SmallLeader(BLOCK_SIZE)._load(Planned(1, [10], Sampling(max_tokens=20)))
    given = {1: [7, 8], 5: [9]}
    num_foretold = 0
    for step in range(1, 12):
        item = Item(1, step - 1, 1, [10] if step == 1 else [], step - 1, given.get(step, []))
        frame, was_foretold = run_short(executor, engine, make_plan(1, step, [item], [new] if step == 1 else []))
        assert (len(rows_of(frame)), frame.errors) == (1, [])
        num_foretold += was_foretold
    blocks = [int(batch.slot_mapping[0]) // BLOCK_SIZE for batch in engine.batches]
    assert blocks == [7] * 4 + [8] * 4 + [9] * 3
    assert num_foretold > 4


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        pytest.param(Item(1, 9, 1, [], 5, [NUM_BLOCKS]), "block id", id="block beyond the memory"),
        pytest.param(Item(1, 9, 1, [], 5, []), "too few", id="block missing"),
        pytest.param(Item(1, 8, 1, [], 5, [9]), "start", id="wrong start"),
        pytest.param(Item(1, 9, 1, [], 6, [9]), "position", id="wrong position"),
        pytest.param(Item(1, 9, 1, [VOCAB_SIZE], 5, [9]), "token id", id="token given that is none"),
    ],
)
def test_a_bad_plan_in_mid_run_costs_only_its_sequence(item: Item, reason: str) -> None:
    """Sequence 1 has 4 + 5 tokens when the bad plan comes... and the other goes on as if nothing were."""
    leader = leader_of([10, 11, 12], [13, 14, 15, 16])
    executor, engine = make_executor(), MemoryEngine()
    engine.next_token = lambda context: 20 + len(context)
    for plan in plans_of(leader, 5):
        run_short(executor, engine, plan)
    length = int(engine.batches[-1].context_lens[1])
    shifted = Item(1, item.start - 9 + length, 1, item.tokens, item.position, item.new_blocks)
    assert length % BLOCK_SIZE == 0, "the next token needs a block"
    frame = run_short(executor, engine, make_plan(1, 6, [Item(0, length - 1, 1, [], 5), shifted]))[0]
    assert [(error.sequence, reason in error.message) for error in frame.errors] == [(1, True)]
    assert [(row.sequence, row.position, row.token) for row in rows_of(frame)] == [(0, 5, 20 + length)]


def test_an_error_of_the_engine_in_mid_run_costs_only_its_sequence() -> None:
    leader = leader_of([10, 11, 12], [13, 14, 15, 16])
    executor, engine = make_executor(), MemoryEngine()
    plans = plans_of(leader, 8)
    for plan in plans[:4]:
        leader.update(run_short(executor, engine, plan)[0])
    step = executor.begin(PlanColumns(plans[4]))
    assert step.run is not None and step.batch is not None
    output = engine.step(step.batch)
    frame = executor.finish(step, StepOutput(output.tokens, errors={1: "logits are not finite"}))
    assert [(error.sequence, error.message) for error in frame.errors] == [(1, "logits are not finite")]
    leader.update(frame)
    for plan in plans[5:]:
        leader.update(run_short(executor, engine, plan)[0])
    alone = leader_of([10, 11, 12])
    executor, engine = make_executor(), MemoryEngine()
    for plan in plans_of(alone, 8):
        alone.update(run_short(executor, engine, plan)[0])
    assert leader.sequences[0].outputs == alone.sequences[0].outputs
    assert len(leader.sequences[1].outputs) == 4


def test_it_ends_where_max_model_len_does() -> None:
    """Plans beyond it are errors, foretold or not."""
    leader = leader_of([10] * 100, max_tokens=100)
    executor, engine = make_executor(), MemoryEngine()
    engine.next_token = lambda context: 20
    plans = plans_of(leader, 34)
    frames = [run_short(executor, engine, plan)[0] for plan in plans[:30]]
    assert not any(frame.errors for frame in frames)
    errors = []
    for plan in plans[30:]:
        step = executor.begin(PlanColumns(plan))
        output = StepOutput(np.zeros(0, dtype=np.int32)) if step.batch is None else engine.step(step.batch)
        errors += executor.finish(step, output).errors
    assert len(errors) == 1 and "max_model_len" in errors[0].message
