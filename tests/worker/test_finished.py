"""Rule 8: the worker skips rows of sequences that it has finished itself, in plans made before that was known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.endings import Endings
from shared.messages.sampling import Sampling
from tests.worker.engines import BLOCK_SIZE, MemoryEngine, make_executor, run_step
from tests.worker.plans import Planned, SmallLeader, rows_of

EOS, STOP = 2, 40


def run(sampling: Sampling, tokens: list[int], num_steps: int) -> tuple[list[list[int]], MemoryEngine]:
    """Tokens of each frame when the engine samples `tokens` in turn; all plans are made ahead."""
    leader, executor, engine = SmallLeader(BLOCK_SIZE), make_executor(), MemoryEngine()
    leader.open_epoch(1)
    generous = Planned(1, [5, 6], Sampling(max_tokens=100))
    leader.add(generous)
    plans = []
    for _ in range(num_steps):
        plan = leader.make_plan()
        assert plan is not None
        plans.append(plan)
    loaded = plans[0].new[0]
    plans[0].new[0] = type(loaded)(
        sequence=1, sampling=sampling, num_prompt_tokens=2, num_tokens=2, block_ids=b"", cache_key=""
    )
    source = iter(tokens)
    engine.next_token = lambda context: next(source)
    return [[row.token for row in rows_of(run_step(executor, engine, plan))] for plan in plans], engine


@pytest.mark.parametrize(
    ("sampling", "tokens", "expected"),
    [
        pytest.param(Sampling(max_tokens=3), [7, 8, 9], [[7], [8], [9], [], []], id="length"),
        pytest.param(Sampling(max_tokens=9, eos_token_ids=(EOS,)), [7, EOS], [[7], [EOS], [], [], []], id="eos"),
        pytest.param(Sampling(max_tokens=9, stop_token_ids=(STOP,)), [STOP], [[STOP], [], [], [], []], id="stop token"),
        pytest.param(
            Sampling(max_tokens=9, stop_token_ids=tuple(range(30, 50))),
            [7, STOP],
            [[7], [STOP], [], [], []],
            id="many stop tokens",
        ),
        pytest.param(
            Sampling(max_tokens=9, min_tokens=2, eos_token_ids=(EOS,)),
            [EOS, EOS, EOS],
            [[EOS], [EOS], [EOS], [], []],
            id="min_tokens",
        ),
        pytest.param(
            Sampling(max_tokens=9), [EOS, 3, 4, 5, 6], [[EOS], [3], [4], [5], [6]], id="ignored eos is a token like any"
        ),
    ],
)
def test_rule_08_rows_of_finished_sequences_are_skipped(
    sampling: Sampling, tokens: list[int], expected: list[list[int]]
) -> None:
    frames, engine = run(sampling, tokens, 5)
    assert frames == expected
    assert len(engine.batches) == sum(1 for frame in expected if frame), "nothing is computed for them either"


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        Sampling,
        max_tokens=st.integers(1, 6),
        min_tokens=st.integers(0, 4),
        eos_token_ids=st.lists(st.integers(0, 12), max_size=3).map(tuple),
        stop_token_ids=st.lists(st.integers(0, 25), max_size=12).map(tuple),
    ),
    st.lists(st.integers(0, 25), min_size=6, max_size=6),
)
def test_rule_08_worker_and_fold_agree_where_a_sequence_ends(sampling: Sampling, tokens: list[int]) -> None:
    endings = Endings(sampling)
    end = next(count for count, token in enumerate(tokens, 1) if endings.after(token, count) is not None)
    frames, _ = run(sampling, tokens, 6)
    assert [token for frame in frames for token in frame] == tokens[:end]


def test_rule_08_others_in_the_same_plan_go_on() -> None:
    leader, executor, engine = SmallLeader(BLOCK_SIZE), make_executor(), MemoryEngine()
    leader.open_epoch(1)
    short = Planned(1, [5, 6], Sampling(max_tokens=9, eos_token_ids=tuple(range(0, 1000))))
    long = Planned(2, [7, 8], Sampling(max_tokens=5))
    leader.add(short)
    leader.add(long)
    num_rows = []
    while (plan := leader.make_plan()) is not None and leader.step < 6:
        frame = run_step(executor, engine, plan)
        num_rows.append(len(rows_of(frame)))
        leader.update(frame)
    assert num_rows == [2, 1, 1, 1, 1]
    assert len(short.outputs) == 1
