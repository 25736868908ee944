"""From plans to frames: the columns of each step, and that they compute what a plain run computes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from services.worker.core.plan_columns import PlanColumns
from services.worker.engine.interface import StepInput, StepOutput
from shared.messages.packed import INT32, UINT64, pack
from shared.messages.pipeline import NewSequence, RowError, RowLogprobs
from shared.messages.sampling import Sampling
from shared.prefix_hash import extend
from tests.worker.engines import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    NUM_BLOCKS,
    VOCAB_SIZE,
    MemoryEngine,
    continuation,
    make_executor,
    run_step,
)
from tests.worker.plans import Item, Planned, SmallLeader, make_plan, rows_of

EPOCH = 3

token_lists = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30)


def check_columns(batch: StepInput) -> None:
    """What interface.StepInput promises, row by row and slowly."""
    num_sequences = len(batch.context_lens)
    assert batch.cu_seqlens_q[0] == 0 and len(batch.cu_seqlens_q) == num_sequences + 1
    for index in range(num_sequences):
        first, last = batch.cu_seqlens_q[index], batch.cu_seqlens_q[index + 1]
        positions = batch.positions[first:last].tolist()
        end = int(batch.context_lens[index])
        assert positions == list(range(end - len(positions), end))
        table = batch.block_tables[index].tolist()
        slots = [table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in positions]
        assert batch.slot_mapping[first:last].tolist() == slots
        assert all(block == 0 for block in table[-(-end // BLOCK_SIZE) :])
    lengths = zip(batch.context_lens[batch.sampled].tolist(), batch.rows, strict=True)
    assert batch.output_positions.tolist() == [length - row.num_prompt_tokens for length, row in lengths]
    dtypes = (batch.token_ids, batch.cu_seqlens_q, batch.context_lens, batch.block_tables)
    assert all(column.dtype == np.int32 for column in (*dtypes, batch.sampled, batch.output_positions))
    assert batch.positions.dtype == batch.slot_mapping.dtype == np.int64


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(token_lists, st.integers(1, 12), st.integers(0, 6)), min_size=1, max_size=6), st.integers(1, 9)
)
def test_rule_21_each_row_carries_the_crc_of_what_it_was_computed_on(
    wishes: list[tuple[list[int], int, int]], chunk: int
) -> None:
    """Mixed steps of prefill chunks and single tokens; sequences join in different steps."""
    leader, executor, engine = SmallLeader(BLOCK_SIZE, chunk), make_executor(), MemoryEngine()
    leader.open_epoch(EPOCH)
    waiting = [
        (joins, Planned(number << 8, prompt, Sampling(max_tokens=max_tokens)))
        for number, (prompt, max_tokens, joins) in enumerate(wishes)
    ]
    for turn in range(200):
        for joins, sequence in waiting:
            if joins == turn:
                leader.add(sequence)
        plan = leader.make_plan()
        if plan is None:
            if turn > 6:
                break
            continue
        frame = run_step(executor, engine, plan)
        assert (frame.epoch, frame.step, frame.errors) == (EPOCH, leader.step, [])
        for row in rows_of(frame):
            before = [*leader.sequences[row.sequence].prompt, *leader.sequences[row.sequence].outputs]
            assert row.prefix_hash == extend(0, pack(INT32, before))
        leader.update(frame)
    for batch in engine.batches:
        check_columns(batch)
    for _, sequence in waiting:
        assert sequence.outputs == continuation(sequence.prompt, sequence.sampling.max_tokens)


def test_plans_may_be_made_before_the_tokens_are_known() -> None:
    leader, executor, engine = SmallLeader(BLOCK_SIZE), make_executor(), MemoryEngine()
    leader.open_epoch(EPOCH)
    sequence = Planned(256, [5, 6, 7], Sampling(max_tokens=6))
    leader.add(sequence)
    plans = [leader.make_plan() for _ in range(6)]
    for plan in plans:
        assert plan is not None
        leader.update(run_step(executor, engine, plan))
    assert sequence.outputs == continuation([5, 6, 7], 6)


def test_slots_are_reused_and_grow() -> None:
    """More sequences than the first capacity, coming and going."""
    leader, executor, engine = SmallLeader(BLOCK_SIZE), make_executor(), MemoryEngine()
    leader.open_epoch(EPOCH)
    for number in range(100):
        leader.add(Planned(number, [number, number + 1], Sampling(max_tokens=3)))
    sequences = dict(leader.sequences)
    for number in range(3):
        plan = leader.make_plan()
        assert plan is not None
        leader.update(run_step(executor, engine, plan))
        if number == 0:
            leader.remove(50)
    assert len(executor.table) == 99
    for number, sequence in sequences.items():
        assert sequence.outputs == continuation(sequence.prompt, 1 if number == 50 else 3)


def test_history_goes_along_only_where_penalties_need_it() -> None:
    leader, executor, engine = SmallLeader(BLOCK_SIZE, chunk=2), make_executor(), MemoryEngine()
    leader.open_epoch(EPOCH)
    plain = Planned(1, [1, 2, 3], Sampling(max_tokens=3))
    penalised = Planned(2, [4, 5, 6], Sampling(max_tokens=3, repetition_penalty=1.5))
    leader.add(plain)
    leader.add(penalised)
    seen: list[list[int]] = []
    while (plan := leader.make_plan()) is not None:
        step = executor.begin(PlanColumns(plan))
        assert step.batch is not None
        for row in step.batch.rows:
            if row.sampling.has_penalties:
                assert row.history is not None
                assert row.num_prompt_tokens == 3
                seen.append(row.history.tolist())
            else:
                assert row.history is None
        leader.update(executor.finish(step, engine.step(step.batch)))
    known = [4, 5, 6, *penalised.outputs]
    assert seen == [known[:3], known[:4], known[:5]]


def new(sequence: int = 1, prompt: int = 3, sampling: Sampling | None = None, **fields: object) -> NewSequence:
    values = {"num_prompt_tokens": prompt, "num_tokens": prompt, **fields}
    return NewSequence(sequence=sequence, sampling=sampling or Sampling(max_tokens=8), **values)  # type: ignore[arg-type]


FIRST = Item(1, 0, 3, [7, 8, 9], 0, [0])

BAD_NEW = {
    "a block id beyond the memory": (new(block_ids=pack(INT32, [NUM_BLOCKS])), "block id"),
    "a negative block id": (new(block_ids=pack(INT32, [-1])), "block id"),
    "ragged block ids": (new(block_ids=b"123"), "block_ids"),
    "cached tokens that are no whole blocks": (new(num_cached_tokens=2, block_ids=pack(INT32, [0])), "cached"),
    "cached blocks that it does not hold": (
        new(prompt=6, num_cached_tokens=4, block_ids=pack(INT32, [3])),
        "cached blocks",
    ),
    "all tokens cached": (new(prompt=4, num_cached_tokens=4, block_ids=pack(INT32, [3])), "cached"),
    "no prompt": (new(prompt=0), "prompt"),
    "a sequence beyond max_model_len": (new(prompt=MAX_MODEL_LEN + 1), "max_model_len"),
    "outputs that reach max_tokens": (new(num_tokens=11), "max_tokens"),
    "a stop id beyond the vocabulary": (new(sampling=Sampling(max_tokens=8, stop_token_ids=(VOCAB_SIZE,))), "stop"),
    "a bias on an id beyond the vocabulary": (new(sampling=Sampling(max_tokens=8, logit_bias={-1: 1.0})), "logit_bias"),
    "a history of another length": (
        new(sampling=Sampling(max_tokens=8, presence_penalty=1.0), history=pack(INT32, [1, 2])),
        "history",
    ),
    "a history with foreign ids": (
        new(sampling=Sampling(max_tokens=8, presence_penalty=1.0), history=pack(INT32, [1, 2, VOCAB_SIZE])),
        "history",
    ),
}

BAD_FIRST = {
    "an unknown sequence": (Item(99, 0, 1, [7], -1, [0]), "does not hold"),
    "a token id of the vocabulary's size": (Item(1, 0, 3, [7, VOCAB_SIZE, 9], 0, [0]), "token id"),
    "a negative token id": (Item(1, 0, 3, [7, -1, 9], 0, [0]), "token id"),
    "a block beyond the memory": (Item(1, 0, 3, [7, 8, 9], 0, [NUM_BLOCKS]), "block id"),
    "too few blocks": (Item(1, 0, 3, [7, 8, 9], 0, []), "too few blocks"),
    "too many blocks": (Item(1, 0, 3, [7, 8, 9], 0, list(range(40))), "more blocks"),
    "a start beyond the KV": (Item(1, 1, 2, [8, 9], 0, [0]), "start"),
    "no token scheduled": (Item(1, 0, 0, [], -1, [0]), "no token"),
    "fewer tokens given than needed": (Item(1, 0, 3, [7], 0, [0]), "give"),
    "more tokens given than scheduled": (Item(1, 0, 2, [7, 8, 9], -1, [0]), "give"),
    "a token that was never sampled": (Item(1, 0, 3, [7, 8], 0, [0]), "never sampled"),
    "tokens that do not exist yet": (Item(1, 0, 4, [7, 8, 9, 10], 1, [0]), "exist"),
    "a sample in mid-prompt": (Item(1, 0, 2, [7, 8], 0, [0]), "before the last"),
    "a wrong output position": (Item(1, 0, 3, [7, 8, 9], 1, [0]), "position"),
}


@pytest.mark.parametrize("case", BAD_NEW)
def test_a_bad_new_sequence_costs_only_itself(case: str) -> None:
    bad, reason = BAD_NEW[case]
    check_only_the_bad_one_fails(bad, FIRST, reason)


@pytest.mark.parametrize("case", BAD_FIRST)
def test_a_bad_item_costs_only_its_sequence(case: str) -> None:
    bad, reason = BAD_FIRST[case]
    check_only_the_bad_one_fails(new(), bad, reason)


def check_only_the_bad_one_fails(bad_new: NewSequence, bad_item: Item, reason: str) -> None:
    executor, engine = make_executor(), MemoryEngine()
    good = Item(2, 0, 2, [11, 12], 0, [5])
    plan = make_plan(EPOCH, 1, [good, bad_item], [new(2, 2), bad_new])
    frame = run_step(executor, engine, plan)
    assert [error.sequence for error in frame.errors] == [bad_item.sequence]
    assert reason in frame.errors[0].message
    assert [(row.sequence, row.token) for row in rows_of(frame)] == [(2, continuation([11, 12], 1)[0])]
    later = [Item(2, 2, 1, [], 1), Item(bad_item.sequence, 3, 1, [], 1)]
    frame = run_step(executor, engine, make_plan(EPOCH, 2, later))
    assert frame.errors == [], "it was told of once"
    assert [row.token for row in rows_of(frame)] == [continuation([11, 12], 2)[1]]


def test_a_step_of_bad_items_alone_computes_nothing_and_still_makes_its_frame() -> None:
    executor, engine = make_executor(), MemoryEngine()
    frame = run_step(executor, engine, make_plan(EPOCH, 1, [Item(5, 0, 1, [1], 0, [0])]))
    assert (frame.step, rows_of(frame), len(frame.errors)) == (1, [], 1)
    assert engine.batches == []


def two_running() -> tuple[SmallLeader, "PlanColumns"]:
    leader = SmallLeader(BLOCK_SIZE)
    leader.open_epoch(EPOCH)
    leader.add(Planned(1, [1, 2], Sampling(max_tokens=4, logprobs=1)))
    leader.add(Planned(2, [3, 4], Sampling(max_tokens=4)))
    plan = leader.make_plan()
    assert plan is not None
    return leader, PlanColumns(plan)


def test_a_row_that_the_engine_could_not_sample_is_an_error_of_its_sequence_only() -> None:
    executor, (leader, plan) = make_executor(), two_running()
    step = executor.begin(plan)
    logprob = RowLogprobs(-0.5, 1, (10,), (-0.5,))
    output = StepOutput(np.array([10, 11], dtype=np.int32), [logprob, None], {0: "logits are not finite"})
    frame = executor.finish(step, output)
    assert frame.errors == [RowError(1, "logits are not finite")]
    assert [(row.sequence, row.token) for row in rows_of(frame)] == [(2, 11)]
    assert frame.logprobs in ([], [None])
    following = leader.make_plan()
    assert following is not None
    again = executor.begin(PlanColumns(following))
    assert again.items.sequences.tolist() == [2]


def test_logprobs_keep_to_their_rows() -> None:
    executor, (_, plan) = make_executor(), two_running()
    logprob = RowLogprobs(-0.5, 1, (10,), (-0.5,))
    output = StepOutput(np.array([10, 11], dtype=np.int32), [logprob, None])
    assert executor.finish(executor.begin(plan), output).logprobs == [logprob, None]


def test_a_token_beyond_the_vocabulary_is_an_error_not_a_row() -> None:
    executor, (_, plan) = make_executor(), two_running()
    frame = executor.finish(executor.begin(plan), StepOutput(np.array([VOCAB_SIZE, 3], dtype=np.int32)))
    assert [error.sequence for error in frame.errors] == [1]
    assert [row.sequence for row in rows_of(frame)] == [2]


def test_a_sequence_that_failed_as_a_whole_is_an_error_even_without_a_row() -> None:
    executor = make_executor()
    plan = make_plan(EPOCH, 1, [Item(1, 0, 2, [1, 2], -1, [0]), Item(2, 0, 2, [3, 4], 0, [1])], [new(1, 3), new(2, 2)])
    step = executor.begin(PlanColumns(plan))
    frame = executor.finish(step, StepOutput(np.array([9], dtype=np.int32), failed={0: "out of memory"}))
    assert frame.errors == [RowError(1, "out of memory")]
    assert [row.sequence for row in rows_of(frame)] == [2]


# ---- begun ahead ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["nothing", "forget", "another", "load again", "swap", "penalties"])
def test_what_needs_the_outcome_of_the_running_step_waits_for_it(what: str) -> None:
    """And leaves no trace before."""
    executor, leader = make_executor(), SmallLeader(BLOCK_SIZE)
    leader.open_epoch(EPOCH)
    penalty = 1.0 if what == "penalties" else 0.0
    leader.add(Planned(1, [1, 2], Sampling(max_tokens=9, presence_penalty=penalty)))
    leader.add(Planned(2, [3, 4], Sampling(max_tokens=9)))
    plans = [leader.make_plan(), leader.make_plan()]
    assert plans[0] is not None and plans[1] is not None
    changes: dict[str, object] = {}
    if what == "forget":
        changes = {"forget": pack(UINT64, [2])}
    elif what == "another":
        changes = {"forget": pack(UINT64, [3])}
    elif what == "load again":
        changes = {"new": [plans[0].new[1]]}
    elif what == "swap":
        changes = {"swap_out": pack(INT32, [0, 0])}
    plan = PlanColumns(structs.replace(plans[1], **changes))
    step = executor.begin(PlanColumns(plans[0]))
    before = executor.table.num_computed.copy()
    ahead = executor.begin_ahead(plan)
    assert (ahead is not None) == (what in ("nothing", "another"))
    assert np.array_equal(before, executor.table.num_computed) == (ahead is None)
    executor.finish(step, StepOutput(np.array([5, 6], dtype=np.int32)))
    ahead = ahead or executor.begin(plan)
    assert ahead.batch is None or ahead.batch.token_ids.tolist()[:1] == [5]


@pytest.mark.parametrize("fails_first", [False, True])
def test_cache_is_forgotten_only_for_an_error_that_is_told(fails_first: bool) -> None:
    """A row behind the end of its sequence may fail like any other, and an engine then calls all its blocks spoiled."""
    executor = make_executor()
    prompt = list(range(1, BLOCK_SIZE + 2))
    sequence = new(1, len(prompt), Sampling(max_tokens=8, eos_token_ids=(6,)))
    plan = make_plan(EPOCH, 1, [Item(1, 0, len(prompt), prompt, 0, [0, 1])], [sequence])
    step = executor.begin(PlanColumns(plan))
    behind = executor.begin_ahead(PlanColumns(make_plan(EPOCH, 2, [Item(1, len(prompt), 1, [], 1)])))
    assert behind is not None
    failing = StepOutput(np.array([5], dtype=np.int32), errors={0: "not finite"}, spoiled_blocks=[0, 1])
    eos = StepOutput(np.array([6], dtype=np.int32))
    first = executor.finish(step, failing if fails_first else eos)
    second = executor.finish(behind, failing)
    assert (len(first.errors), second.errors, rows_of(second)) == (int(fails_first), [], [])
    assert (executor.ledger.hash_of(0) is None) == fails_first


def test_steps_are_finished_in_their_order() -> None:
    executor, leader = make_executor(), SmallLeader(BLOCK_SIZE)
    leader.open_epoch(EPOCH)
    leader.add(Planned(1, [1, 2], Sampling(max_tokens=9)))
    first, second = leader.make_plan(), leader.make_plan()
    assert first is not None and second is not None
    executor.begin(PlanColumns(first))
    ahead = executor.begin_ahead(PlanColumns(second))
    assert ahead is not None
    with pytest.raises(ValueError, match="order"):
        executor.finish(ahead, StepOutput(np.array([5], dtype=np.int32)))
