"""The engine without a model: what each mode promises, and that requests' narrowings hold."""

import time

import numpy as np
import pytest

from services.worker.engine.fake import FakeEngine, FakeMode
from services.worker.engine.fake_vocabulary import ordinary_token_ids
from services.worker.engine.interface import RowSampling, StepInput
from services.worker.engine.isolation import step_one_by_one
from shared.messages.sampling import Sampling

SPECIAL = range(17)
VOCAB_SIZE = 5000


def make_engine(mode: FakeMode, step_s: float = 0.0) -> FakeEngine:
    return FakeEngine(
        model="m",
        model_version="1",
        vocab_size=VOCAB_SIZE,
        token_ids=np.arange(len(SPECIAL), VOCAB_SIZE, dtype=np.int32),
        num_blocks=100,
        block_size=16,
        max_model_len=512,
        step_s=step_s,
        mode=mode,
    )


def batch_of(rows: list[RowSampling], output_positions: int | list[int] = 0) -> StepInput:
    count = len(rows)
    return StepInput(
        token_ids=np.zeros(count, dtype=np.int32),
        positions=np.zeros(count, dtype=np.int64),
        slot_mapping=np.arange(count, dtype=np.int64),
        cu_seqlens_q=np.arange(count + 1, dtype=np.int32),
        context_lens=np.ones(count, dtype=np.int32),
        block_tables=np.zeros((count, 1), dtype=np.int32),
        sampled=np.arange(count, dtype=np.int32),
        output_positions=np.full(count, output_positions, dtype=np.int32),
        rows=rows,
    )


def row(seed: int, **sampling: object) -> RowSampling:
    return RowSampling(Sampling(max_tokens=9, seed=seed, **sampling), 3)  # type: ignore[arg-type]


def test_pure_tokens_depend_on_seed_and_position_alone() -> None:
    rows = [row(seed) for seed in (0, 1, 2**63, -5) for _ in range(20)]
    positions = [*range(20)] * 4
    together = make_engine("pure").step(batch_of(rows, positions)).tokens.tolist()
    each = zip(rows, positions, strict=True)
    alone = [int(make_engine("pure").step(batch_of([one], position)).tokens[0]) for one, position in each]
    assert together == alone
    assert len(set(together)) > 60, "different seeds and positions make different text"


def test_each_row_keeps_its_position_when_sequences_are_computed_one_by_one() -> None:
    batch = batch_of([row(7)] * 3, [5, 0, 9])
    batch.cu_seqlens_q, batch.sampled = np.arange(6, dtype=np.int32), np.array([4, 0, 3], dtype=np.int32)
    batch.context_lens, batch.block_tables = np.ones(5, dtype=np.int32), np.zeros((5, 1), dtype=np.int32)
    batch.token_ids = np.zeros(5, dtype=np.int32)
    batch.positions = batch.slot_mapping = np.zeros(5, dtype=np.int64)
    engine = make_engine("pure")
    assert step_one_by_one(engine, batch).tokens.tolist() == engine.step(batch).tokens.tolist()


def test_chained_tokens_are_of_the_processs_own_entropy() -> None:
    batch = batch_of([row(0)] * 64, [*range(64)])
    first, second = (make_engine("chained").step(batch).tokens.tolist() for _ in range(2))
    assert first != second


@pytest.mark.parametrize("mode", ["pure", "chained"])
def test_no_special_token_comes_by_itself(mode: FakeMode) -> None:
    tokens = make_engine(mode).step(batch_of([row(seed) for seed in range(4000)])).tokens
    assert tokens.dtype == np.int32
    assert tokens.min() >= len(SPECIAL) and tokens.max() < VOCAB_SIZE


@pytest.mark.parametrize("mode", ["pure", "chained"])
def test_allowed_and_bad_tokens_narrow_the_choice(mode: FakeMode) -> None:
    rows = [row(seed, allowed_token_ids=(2, 30, 31), bad_token_ids=(30,)) for seed in range(50)]
    assert set(make_engine(mode).step(batch_of(rows)).tokens.tolist()) == {2, 31}
    only_bad = make_engine(mode).step(batch_of([row(0, allowed_token_ids=(2,), bad_token_ids=(2,))]))
    assert only_bad.tokens.tolist() == [2]


def test_logprobs_are_those_of_a_distribution() -> None:
    output = make_engine("pure").step(batch_of([row(1, logprobs=3), row(2), row(3, logprobs=0)]))
    full, none, chosen_only = output.logprobs
    assert full is not None and chosen_only is not None and none is None
    assert full.top_ids[0] == output.tokens[0] and len(set(full.top_ids)) == 3
    assert list(full.top_logprobs) == sorted(full.top_logprobs, reverse=True)
    assert full.logprob == full.top_logprobs[0] and full.rank == 1
    assert float(np.exp(full.top_logprobs).sum()) <= 1.0
    assert chosen_only.top_ids == ()
    assert make_engine("pure").step(batch_of([row(1)])).logprobs == []


def test_a_step_takes_its_time() -> None:
    begun_s = time.perf_counter()
    make_engine("pure", step_s=0.05).step(batch_of([row(0)]))
    assert time.perf_counter() - begun_s >= 0.05


def test_ordinary_tokens_are_those_of_the_vocabulary_that_are_not_special() -> None:
    added = [{"id": 0, "special": True}, {"id": 7, "special": False}, {"id": 99, "special": False}]
    tokenizer = {"model": {"vocab": {"<eos>": 0, "a": 1, "b": 2}}, "added_tokens": added}
    assert ordinary_token_ids(tokenizer, 50).tolist() == [1, 2, 7]
    words = {"model": {"vocab": {"a": 0, "Ġb": 1, "Ġ": 2, "Ġc": 3, "error": 4}}}
    assert ordinary_token_ids(words, 50).tolist() == [1, 3], "what it says reads as words"
    unigram = {"model": {"vocab": [["<unk>", 0.0], ["a", -1.0]]}, "added_tokens": added[:1]}
    assert ordinary_token_ids(unigram, 50).tolist() == [1]
    with pytest.raises(ValueError, match="no ordinary tokens"):
        ordinary_token_ids({}, 50)
