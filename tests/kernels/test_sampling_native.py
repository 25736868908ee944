"""Sampling in C++ beside sampling in torch over a whole vocabulary, and what only the C++ way has: packed batches."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import cpu, reference
from kernels.sampling.native import sample_native
from kernels.sampling.native_rows import RowBatches
from kernels.sampling.rows import NOT_FINITE, Row
from tests.kernels.samplers import Native, sample_by_torch
from tests.kernels.sampling_cases import LOGITS, PARAMETERS, assert_same_tokens
from tests.kernels.sampling_rows import mask_of, positions_of, random_logits, row

FIRST = np.zeros(1, dtype=np.int32)  # output position of a single row


@pytest.fixture(params=["avx2", "avx512"], scope="module")
def native(request: pytest.FixtureRequest) -> Iterator[Native]:
    one = Native(request.param)
    yield one
    one.close()


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_the_same_tokens_as_torch(native: Native, kind: str, parameters: dict[str, object]) -> None:
    batch = [row(seed=977 * seed + 5, position=seed, **parameters) for seed in range(6)]
    logits = np.stack([LOGITS[kind](seed) for seed in range(len(batch))])
    assert_same_tokens(native(logits, *batch), sample_by_torch(logits, *batch), logits, batch)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 1000),
    vocabulary=st.integers(1, 400),
    num_top=st.integers(0, 450),
    parameters=st.sampled_from(PARAMETERS[:3]),
)
def test_reports_equal_the_reference_among_many_equals(
    native: Native, seed: int, vocabulary: int, num_top: int, parameters: dict[str, object]
) -> None:
    logits = np.round(random_logits(seed, vocabulary))
    result = native(logits, row(seed=seed, logprobs=num_top, **parameters))
    report = result.logprobs[0]
    assert report is not None
    expected = reference.token_logprobs(logits, int(result.tokens[0]), num_top)
    assert (report.rank, report.top_ids) == (expected.rank, expected.top_ids)
    np.testing.assert_allclose(
        [report.logprob, *report.top_logprobs], [expected.logprob, *expected.top_logprobs], rtol=1e-5, atol=2e-6
    )


@pytest.mark.parametrize("num_threads", [1, 3, 8])
def test_the_number_of_threads_changes_nothing(native: Native, num_threads: int) -> None:
    batch = [row(seed=seed, position=seed, top_p=0.9, logprobs=3 if seed % 3 == 0 else None) for seed in range(40)]
    logits = np.stack([random_logits(seed, 3000) for seed in range(len(batch))])
    alone = [native(logits[index], one) for index, one in enumerate(batch)]
    packed = RowBatches(3000).of(batch, positions_of(batch))
    team = native.library.tokenbus_team_new(num_threads)
    try:
        result = sample_native(team, native.library, torch.from_numpy(logits), packed)
    finally:
        native.library.tokenbus_team_delete(team)
    assert result.tokens.tolist() == [int(one.tokens[0]) for one in alone]
    assert result.logprobs == [one.logprobs[0] for one in alone]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 998, 1000])
def test_every_place_of_a_row_is_checked(native: Native, value: float, place: int) -> None:
    logits = np.stack([random_logits(1, 1001), random_logits(1, 1001)])
    logits[1, place] = value
    result = native(logits, row(temperature=0.0), row(temperature=0.0))
    assert result.errors == {1: NOT_FINITE}
    assert result.tokens[0] == logits[0].argmax()


@pytest.mark.parametrize("bias", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {}, {"top_p": 0.5, "top_k": 3}], ids=str)
def test_a_bias_that_is_no_number_costs_at_most_its_row(
    native: Native, bias: float, parameters: dict[str, object]
) -> None:
    logits = random_logits(1, 100)
    result = native(logits, row(logit_bias={3: bias}, **parameters), row(temperature=0.0))
    assert set(result.errors) <= {0}
    assert 0 <= result.tokens[0] < 100
    assert result.tokens[1] == logits.argmax()


def test_ids_beyond_64_bits_are_outside_the_vocabulary_too(native: Native) -> None:
    result = native(random_logits(1, 100), row(bad_token_ids=(2**70,)), row(logit_bias={-(2**70): 1.0}))
    assert set(result.errors) == {0, 1}


# ---- batches --------------------------------------------------------------------------------------------------------


def test_a_list_of_rows_is_packed_once_and_its_positions_move(native: Native) -> None:
    logits = random_logits(4, 5000)
    rows: list[Row] = [row(seed=seed) for seed in range(5)]
    batches = RowBatches(5000)
    first = batches.of(rows, np.zeros(5, dtype=np.int32))
    for step in range(3):
        positions = np.arange(5, dtype=np.int32) + step
        batch = batches.of(rows, positions)
        assert batch is first
        tokens = sample_native(native.team, native.library, torch.from_numpy(np.tile(logits, (5, 1))), batch).tokens
        moved = [row(seed=seed, position=int(position)) for seed, position in enumerate(positions)]
        assert tokens.tolist() == native(logits, *moved).tokens.tolist()
    assert batches.of(list(rows), positions) is not first


def test_tokens_of_a_step_stay_when_the_next_one_is_sampled(native: Native) -> None:
    rows: list[Row] = [row(temperature=0.0)]
    batches = RowBatches(10)
    results = []
    for token in (3, 4):
        logits = torch.zeros(1, 10)
        logits[0, token] = 1.0
        results.append(sample_native(native.team, native.library, logits, batches.of(rows, FIRST)))
    assert [result.tokens.tolist() for result in results] == [[3], [4]]


def test_only_rows_that_want_more_than_the_likeliest_token_need_logits() -> None:
    rows: list[Row] = [
        row(temperature=0.0),
        row(temperature=1.0),
        row(temperature=0.0, min_tokens=3, eos_token_ids=(2,)),
        row(temperature=0.0, min_tokens=3),
        row(temperature=0.0, logprobs=0),
        row(temperature=0.0, logit_bias={1: 0.5}),
        row(temperature=0.0, frequency_penalty=0.5, history=[1]),
        row(temperature=0.0, bad_token_ids=(1,)),
        row(temperature=0.0, allowed_token_ids=(1,)),
        row(temperature=0.0, grammar_mask=mask_of([1], 10)),
    ]
    batches = RowBatches(10)
    for position, expected in ((2, [1, 2, 4, 5, 6, 7, 8, 9]), (3, [1, 4, 5, 6, 7, 8, 9])):
        batch = batches.of(rows, np.full(len(rows), position, dtype=np.int32))
        assert batch.needs_logits().tolist() == expected


def test_rows_without_logits_have_the_likeliest_token_told_of_them(native: Native) -> None:
    rows: list[Row] = [row(temperature=0.0), row(seed=3), row(temperature=0.0), row(temperature=0.0, logprobs=1)]
    batches = RowBatches(50)
    logits = random_logits(9, 50)
    for likeliest in ([7, 0, -1, 0], [8, 0, 9, 0]):
        batch = batches.of(rows, np.zeros(4, dtype=np.int32))
        copies = torch.from_numpy(np.tile(logits, (3, 1)))  # one more than needed, as in a buffer
        result = sample_native(
            native.team, native.library, copies, batch, batch.needs_logits(), np.array(likeliest, dtype=np.int32)
        )
        assert result.errors == ({2: NOT_FINITE} if likeliest[2] < 0 else {})
        drawn, greedy = native(logits, row(seed=3)).tokens[0], logits.argmax()
        assert result.tokens.tolist() == [likeliest[0], drawn, likeliest[2], greedy]
        assert [report is not None for report in result.logprobs] == [False, False, False, True]


def test_histories_grow_between_steps(native: Native) -> None:
    ids = np.array([1, 2, 3, 4], dtype=np.int32)
    one = row(temperature=0.0, presence_penalty=5.0, history=[], num_prompt_tokens=0)
    rows: list[Row] = [one]
    batches = RowBatches(6)
    logits = np.array([0, 6, 5, 4, 3, 2], dtype=np.float32)
    for length, expected in ((0, 1), (1, 2), (2, 3), (4, 5)):
        object.__setattr__(one, "history", ids[:length])
        batch = batches.of(rows, FIRST)
        result = sample_native(native.team, native.library, torch.from_numpy(logits.copy()[None]), batch)
        assert result.tokens.tolist() == [expected]


def test_a_grammar_mask_moves_between_steps(native: Native) -> None:
    logits = random_logits(5, 70)
    masked = row(temperature=0.0, grammar_mask=mask_of([0], 70))
    rows: list[Row] = [row(temperature=0.0), masked]
    batches = RowBatches(70)
    for allowed in (3, 69, 40, None):
        mask = None if allowed is None else mask_of([allowed], 70)  # without one, everything is allowed
        object.__setattr__(masked, "grammar_mask", mask)
        copies = torch.from_numpy(np.stack([logits, logits]))
        batch = batches.of(rows, np.zeros(2, dtype=np.int32))
        tokens = sample_native(native.team, native.library, copies, batch).tokens.tolist()
        assert tokens == [logits.argmax(), logits.argmax() if allowed is None else allowed]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_history_of_another_type_is_refused_and_one_that_is_read_only_is_not(native: Native, read_only: bool) -> None:
    ids = np.array([0, 0], dtype=np.int32)
    ids.flags.writeable = not read_only
    penalized = row(temperature=0.0, repetition_penalty=3.0)
    object.__setattr__(penalized, "history", ids)
    assert native(np.array([2, 1], dtype=np.float32), penalized).tokens.tolist() == [1]
    object.__setattr__(penalized, "history", ids.astype(np.int64))
    with pytest.raises(ValueError, match="int32"):
        native(np.array([2, 1], dtype=np.float32), penalized)


def test_logits_of_another_shape_are_refused(native: Native) -> None:
    batch = RowBatches(10).of([row(), row()], np.zeros(2, dtype=np.int32))
    for logits in (torch.zeros(1, 10), torch.zeros(2, 9), torch.zeros(10, 2).T):
        with pytest.raises(ValueError, match="logits"):
            sample_native(native.team, native.library, logits, batch)


@pytest.mark.parametrize("num_positions", [0, 1, 3])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}], ids=str)
def test_positions_of_another_number_than_rows_are_refused(num_positions: int, params: dict[str, float]) -> None:
    rows, positions = [row(**params), row(**params)], np.zeros(num_positions, dtype=np.int32)
    with pytest.raises(ValueError, match="positions"):
        RowBatches(10).of(rows, positions)
    with pytest.raises(ValueError):
        cpu.sample(torch.zeros(2, 10), rows, positions)
