"""The CUDA sampler in the emulator: against the reference and the CPU's, and what it promises of itself.

What all samplers have in common is tested in tests/kernels/test_sampling.py, on this one too.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.sampling import reference
from kernels.sampling.cuda import DTYPES, Sampling
from kernels.sampling.cuda_rows import Limits, News, StagedRows
from kernels.sampling.rows import NOT_FINITE, Sampled
from tests.kernels.cuda import sampling_checks, sampling_edges
from tests.kernels.cuda.sampling_checks import MIXED, SIZE
from tests.kernels.emulator.module import SCHEDULES, EmulatedModule, Schedule, load_emulated
from tests.kernels.emulator.sanitized import Check
from tests.kernels.samplers import EmulatedSampler, new_sampling, sample_by_torch
from tests.kernels.sampling_rows import VOCABULARY, SampledRow, mask_of, positions_of, random_logits, row, rows


def as_rounded(logits: NDArray[np.float32], dtype: torch.dtype) -> NDArray[np.float32]:
    """What is left of them in this dtype."""
    return torch.from_numpy(logits).to(dtype).float().numpy()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=20, deadline=None)
@given(batch=st.lists(rows(), min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_every_row_equals_the_reference(
    schedule: Schedule, dtype: torch.dtype, batch: list[SampledRow], seed: int
) -> None:
    logits = np.stack([as_rounded(random_logits(seed + index, VOCABULARY), dtype) for index in range(len(batch))])
    result = EmulatedSampler(dtype, schedule)(logits, *batch)
    assert result.errors == {}
    for index, one in enumerate(batch):
        assert result.tokens[index] == reference.sample(logits[index], one, one.position)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    "check", [*sampling_checks.CHECKS, *sampling_checks.LARGE, *sampling_edges.CHECKS], ids=lambda check: check.__name__
)
def test_a_check(schedule: Schedule, check: Check) -> None:
    check(load_emulated(schedule))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_order_of_threads_changes_not_a_bit(dtype: torch.dtype) -> None:
    logits = np.stack([random_logits(seed, SIZE, spread=1.0) for seed in range(len(MIXED))])
    first, *others = (EmulatedSampler(dtype, schedule)(logits, *MIXED) for schedule in SCHEDULES)
    for other in others:
        assert other.tokens.tolist() == first.tokens.tolist()
        assert other.logprobs == first.logprobs


def test_a_row_depends_on_no_other() -> None:
    logits = np.stack([random_logits(seed, SIZE) for seed in range(len(MIXED))])
    sample = EmulatedSampler()
    alone = [sample(logits[index], one) for index, one in enumerate(MIXED)]
    together = sample(logits[::-1], *reversed(MIXED))
    assert together.tokens.tolist() == [int(one.tokens[0]) for one in reversed(alone)]
    assert together.logprobs == [one.logprobs[0] for one in reversed(alone)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 2, 7, 8, 9, 31, 32, 33, 4095, 4096, 4097, 8200])
def test_vocabularies_of_any_length(dtype: torch.dtype, vocabulary: int) -> None:
    logits = np.stack([as_rounded(random_logits(seed, vocabulary), dtype) for seed in range(4)])
    last = mask_of([vocabulary - 1], vocabulary)
    batch = [
        row(temperature=0.0, logprobs=2),
        row(seed=5, top_k=3, logprobs=0),
        row(seed=6, grammar_mask=last),
        row(temperature=0.0, history=[vocabulary - 1], presence_penalty=9.0),
    ]
    result = EmulatedSampler(dtype)(logits, *batch)
    assert result.errors == {}
    expected = [reference.sample(logits[index], one, 0) for index, one in enumerate(batch)]
    assert result.tokens.tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("stride", "begin"), [(1000, 0), (1001, 0), (1008, 1), (1024, 8)])
def test_rows_may_lie_apart_and_begin_anywhere(dtype: torch.dtype, stride: int, begin: int) -> None:
    batch = [row(temperature=0.0), row(seed=1), row(seed=2, top_p=0.5, logprobs=1)]
    memory = torch.full((4 * stride,), float("nan"), dtype=dtype)
    logits = memory[begin : begin + 3 * stride].view(3, stride)[:, :1000]
    for index in range(len(batch)):
        logits[index] = torch.from_numpy(random_logits(index, 1000)).to(dtype)
    result = new_sampling(1000, 3, dtype)(logits, batch, positions_of(batch))
    expected = EmulatedSampler(dtype)(logits.float().numpy(), *batch)
    assert (result.tokens.tolist(), result.logprobs) == (expected.tokens.tolist(), expected.logprobs)


# ---- what a row costs -----------------------------------------------------------------------------------------------


def passes_over(sampling: Sampling, logits: torch.Tensor, one: SampledRow) -> float:
    """How often the row's logits are read."""
    sampling(logits, [one], positions_of([one]))
    module = sampling.module
    assert isinstance(module, EmulatedModule)
    return module.counts.loaded_bytes / logits.nbytes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_greedy_row_reads_its_logits_once_and_no_row_often(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(random_logits(1, 8000)).to(dtype)[None]
    sampling = new_sampling(8000, 1, dtype)
    for one, num_passes in (
        (row(temperature=0.0), 1),
        (row(temperature=0.0, logit_bias={5: 1.0}, history=[1, 2], repetition_penalty=1.1), 1),
        (row(temperature=0.0, grammar_mask=mask_of(range(0, 8000, 3), 8000)), 1),
        (row(seed=1), 2),
        (row(seed=1, min_p=0.1), 2),
        (row(seed=1, top_p=0.999), 3),
        (row(seed=1, top_k=50), 5),
        (row(seed=1, logprobs=0), 4),
    ):
        assert passes_over(sampling, logits, one) == num_passes


# ---- numbers at the edges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 7, 8, 998, 1000])
def test_every_place_of_a_row_is_checked(dtype: torch.dtype, value: float, place: int) -> None:
    logits = np.stack([random_logits(1, 1001), random_logits(1, 1001)])
    logits[1, place] = value
    forbidden = mask_of(set(range(1001)) - {place}, 1001)
    batch = [row(temperature=0.0), row(seed=1, logprobs=3, grammar_mask=forbidden)]
    result = EmulatedSampler(dtype)(logits, *batch)
    assert result.errors == {1: NOT_FINITE}
    assert result.tokens[0] == as_rounded(logits[0], dtype).argmax()


def test_zeros_of_both_signs_are_equal() -> None:
    logits = np.full(600, -1.0, dtype=np.float32)
    logits[[17, 300, 599]] = [-0.0, 0.0, 0.0]
    batch = [row(temperature=0.0, logprobs=3), *[row(seed=seed, top_k=1) for seed in range(30)]]
    result = EmulatedSampler()(logits, *batch)
    assert result.tokens[0] == 17
    assert result.logprobs[0] is not None
    assert result.logprobs[0].top_ids == (17, 300, 599)
    assert set(result.tokens.tolist()) == {17, 300, 599}


@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {}, {"top_p": 0.5, "top_k": 3, "logprobs": 2}], ids=str)
@pytest.mark.parametrize("bias", [np.nan, np.inf, -np.inf])
def test_a_bias_that_is_no_number_costs_at_most_its_row(bias: float, parameters: dict[str, object]) -> None:
    logits = random_logits(1, 100)
    result = EmulatedSampler()(logits, row(logit_bias={3: bias}, **parameters), row(temperature=0.0))
    assert set(result.errors) <= {0}
    assert 0 <= result.tokens[0] < 100
    assert result.tokens[1] == logits.argmax()


def test_the_largest_numbers_there_are() -> None:
    logits = np.array([3.4e38, -3.4e38, 3.3e38, 0.0], dtype=np.float32)
    batch = [row(temperature=0.0, logprobs=4), row(seed=1, temperature=0.01), row(seed=2, top_k=2), row(top_p=0.9)]
    result = EmulatedSampler()(logits, *batch)
    assert result.errors == {}
    assert result.tokens.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("num_kept", [1, 3, 500, 999])
def test_top_p_is_exact_where_tokens_hold_just_as_much(num_kept: int) -> None:
    logits, top_p = np.zeros(1000, dtype=np.float32), num_kept / 1000
    batch = [row(seed=seed, top_p=top_p) for seed in range(60)]
    tokens = EmulatedSampler()(logits, *batch).tokens
    assert tokens.tolist() == sample_by_torch(logits, *batch).tokens.tolist()
    assert tokens.max() < num_kept


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    vocabulary=st.integers(1, 400),
    num_top=st.integers(0, 450),
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from(SCHEDULES),
)
def test_reports_equal_the_reference_among_many_equals(
    seed: int, vocabulary: int, num_top: int, dtype: torch.dtype, order: Schedule
) -> None:
    logits = np.round(random_logits(seed, vocabulary))
    result = EmulatedSampler(dtype, order)(logits, row(seed=seed, logprobs=num_top))
    report = result.logprobs[0]
    assert report is not None
    expected = reference.token_logprobs(logits, int(result.tokens[0]), num_top)
    assert (report.rank, report.top_ids) == (expected.rank, expected.top_ids)
    np.testing.assert_allclose(
        [report.logprob, *report.top_logprobs], [expected.logprob, *expected.top_logprobs], rtol=1e-5, atol=2e-6
    )


# ---- step after step ------------------------------------------------------------------------------------------------


def spoil(sampling: Sampling) -> None:
    """What the device's scratch holds between two steps is nobody's promise."""
    sampling.cells.fill_(-1)


def run(sampling: Sampling, logits: NDArray[np.float32], batch: Sequence[SampledRow], position: int) -> Sampled:
    return sampling(torch.from_numpy(logits), batch, np.full(len(batch), position, dtype=np.int32))


def test_steps_over_the_same_rows_and_over_others_equal_fresh_ones() -> None:
    logits = np.stack([random_logits(seed, SIZE) for seed in range(len(MIXED))])
    sampling = new_sampling(SIZE, len(MIXED))
    for batch in (MIXED, list(reversed(MIXED)), MIXED[:2], MIXED[3:]):
        for position in (4, 5):
            spoil(sampling)
            result = run(sampling, logits[: len(batch)], batch, position)
            moved = [
                SampledRow(one.sampling, position, one.num_prompt_tokens, one.history, one.grammar_mask)
                for one in batch
            ]
            expected = EmulatedSampler()(logits[: len(batch)], *moved)
            assert (result.tokens.tolist(), result.logprobs) == (expected.tokens.tolist(), expected.logprobs)


def test_eos_ids_come_back_after_min_tokens_within_the_same_rows() -> None:
    logits = np.array([[9.0, 8.0, 7.0, 1.0]] * 3, dtype=np.float32)
    batch = [
        row(temperature=0.0, min_tokens=2, eos_token_ids=(0,)),
        row(temperature=0.0, min_tokens=1, eos_token_ids=(0,), stop_token_ids=(1,), bad_token_ids=(2,)),
        row(temperature=0.0),
    ]
    sampling = new_sampling(4, 3)
    for position, expected in enumerate(([1, 3, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0])):
        assert run(sampling, logits, batch, position).tokens.tolist() == expected
    assert run(sampling, logits, batch, 0).tokens.tolist() == [1, 3, 0]


def test_histories_and_grammar_masks_move_between_steps() -> None:
    ids = np.array([1, 2, 3, 4], dtype=np.int32)
    penalized, masked = row(temperature=0.0, presence_penalty=5.0, history=[]), row(temperature=0.0)
    object.__setattr__(masked, "grammar_mask", mask_of([0], 6))
    logits = np.array([[0, 6, 5, 4, 3, 2]] * 2, dtype=np.float32)
    batch, sampling = [penalized, masked], new_sampling(6, 2)
    for length, expected in ((0, 1), (1, 2), (2, 3), (4, 5)):
        object.__setattr__(penalized, "history", ids[:length])
        object.__setattr__(masked, "grammar_mask", mask_of([length, 0], 6))
        assert run(sampling, logits, batch, 0).tokens.tolist() == [expected, length]
    object.__setattr__(masked, "grammar_mask", None)  # which allows everything
    assert run(sampling, logits, batch, 0).tokens.tolist() == [5, 1]


def test_tokens_of_a_step_stay_when_the_next_one_is_sampled() -> None:
    batch, sampling = [row(temperature=0.0)], new_sampling(10, 1)
    results = [run(sampling, np.eye(10, dtype=np.float32)[None, token], batch, 0) for token in (3, 4)]
    assert [result.tokens.tolist() for result in results] == [[3], [4]]
    assert sampling.tokens.tolist() == [4]


def test_an_id_of_the_history_that_is_no_token_fails_its_row_unless_its_logits_do() -> None:
    logits = np.stack([random_logits(1, 100)] * 3)
    logits[1, 5] = np.nan
    strange = row(history=[5, 100, -7], presence_penalty=1.0)
    result = EmulatedSampler()(logits, strange, strange, row(temperature=0.0))
    assert result.errors == {0: "token id 100 is not in the vocabulary of 100", 1: NOT_FINITE}
    assert result.tokens[2] == logits[2].argmax()


# ---- what is staged -------------------------------------------------------------------------------------------------


def stage(staged: StagedRows, batch: Sequence[SampledRow], position: int) -> News:
    return staged.stage(batch, np.full(len(batch), position, dtype=np.int32))


def test_only_what_is_new_is_copied() -> None:
    staged = StagedRows(Limits(100, 8, max_history_tokens=50, max_biases=50))
    plain = [row(temperature=0.0), row(temperature=0.0, logprobs=1)]
    assert stage(staged, plain, 0) == News(rows=2)
    assert stage(staged, plain, 1) == News()
    drawn = [row(seed=3), row(logit_bias={3: 1.0, 4: 2.0}, bad_token_ids=(1,))]
    assert stage(staged, drawn, 0) == News(rows=2, masks=1, biases=2)
    assert stage(staged, drawn, 1) == News(rows=2)
    early = row(temperature=0.0, min_tokens=2, eos_token_ids=(1,))
    grammar, penalized = row(grammar_mask=mask_of([1], 100)), row(history=[1, 2, 3], presence_penalty=1.0)
    batch = [row(bad_token_ids=(1,)), early, penalized, grammar]
    assert stage(staged, batch, 0) == News(rows=4, masks=3, history_tokens=3)
    assert stage(staged, batch, 1) == News(rows=4, masks=1, history_tokens=3)
    assert stage(staged, batch, 2) == News(rows=4, masks=1, history_tokens=3)
    assert stage(staged, batch, 1) == News(rows=4, masks=3, history_tokens=3)
    assert stage(staged, list(batch), 1) == News(rows=4, masks=3, history_tokens=3)


def test_rows_for_which_there_is_no_room_fail_alone() -> None:
    limits = Limits(100, 5, max_history_tokens=5, max_biases=2, max_top=3)
    batch = [
        row(history=[1, 2, 3], presence_penalty=1.0),
        row(history=[1, 2, 3], presence_penalty=1.0),
        row(logit_bias={1: 1.0, 2: 1.0, 3: 1.0}),
        row(logprobs=4),
        row(temperature=0.0, logit_bias={7: 50.0, 8: 60.0}, logprobs=3),
    ]
    result = Sampling(load_emulated(), torch.float32, limits)(torch.zeros(5, 100), batch, positions_of(batch))
    assert {index: reason.split(" ")[-2:] for index, reason in result.errors.items()} == {
        1: ["5", "tokens"],
        2: ["logit", "biases"],
        3: ["for", "3"],
    }
    assert result.tokens[4] == 8
    assert result.logprobs[4] is not None


def test_what_is_no_batch_is_refused() -> None:
    sampling, plain = new_sampling(10, 2), [row(), row()]
    with pytest.raises(ValueError, match="float64"):
        new_sampling(10, 2, torch.float64)
    for positions in (0, 1, 3):
        with pytest.raises(ValueError, match="positions for 2 rows"):
            sampling.stage(plain, np.zeros(positions, dtype=np.int32))
    with pytest.raises(ValueError, match="room for 2"):
        sampling.stage([row()] * 3, np.zeros(3, dtype=np.int32))
    sampling.stage(plain, np.zeros(2, dtype=np.int32))
    for logits in (torch.zeros(1, 10), torch.zeros(2, 9), torch.zeros(10, 2).T, torch.zeros(2, 10).bfloat16()):
        with pytest.raises(ValueError, match="logits"):
            sampling.launch(logits)


@pytest.mark.parametrize("history", [np.zeros(3, dtype=np.int64), np.zeros((3, 1), dtype=np.int32)], ids=str)
def test_a_history_of_another_type_is_refused_and_the_next_step_is_none_the_worse(history: np.ndarray) -> None:
    wrong, sampling = row(temperature=0.0, presence_penalty=1.0), new_sampling(10, 1)
    object.__setattr__(wrong, "history", history)
    logits, batch = np.eye(10, dtype=np.float32)[3][None], [wrong]
    for _ in range(2):
        with pytest.raises(ValueError, match="int32"):
            run(sampling, logits, batch, 0)
    object.__setattr__(wrong, "history", np.array([3, 3], dtype=np.int32))
    assert run(sampling, logits, batch, 0).tokens.tolist() == [0]
