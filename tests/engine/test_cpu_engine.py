"""The engine's own promises: rows fail alone, draws depend on nothing but seed and position, bad steps are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.sampling.reference import sample
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.interface import Engine, RowSampling, StepInput
from services.worker.engine.options import EngineError
from shared.messages.sampling import Sampling
from shared.repository.stored_model import StoredModel
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import Driver, generate, greedy
from tests.engine.options import Options
from tests.engine.reference import Reference

PROMPTS = [[5, 6, 7], [9] * 40, [11, 300, 12, 13, 14], [20, 21] * 9]


def one_token_step(engine: CpuEngine, token: int = 5, position: int = 0, slot: int = 0, block: int = 0) -> StepInput:
    """A sequence whose newest token is at position."""
    return StepInput(
        token_ids=np.array([token], dtype=np.int32),
        positions=np.array([position], dtype=np.int64),
        slot_mapping=np.array([slot], dtype=np.int64),
        cu_seqlens_q=np.array([0, 1], dtype=np.int32),
        context_lens=np.array([position + 1], dtype=np.int32),
        block_tables=np.full((1, position // engine.block_size + 1), block, dtype=np.int32),
        sampled=np.array([0], dtype=np.int32),
        output_positions=np.array([0], dtype=np.int32),
        rows=[RowSampling(greedy(1), 1)],
    )


def test_it_is_an_engine(tiny_engine: CpuEngine, tiny_model: StoredModel) -> None:
    engine: Engine = tiny_engine
    assert (engine.model, engine.model_version, engine.device) == ("tiny", "1", "cpu")
    assert engine.max_model_len == tiny_model.config.max_position_embeddings
    assert engine.vocab_size == tiny_model.config.vocab_size
    assert engine.num_blocks == (4 << 20) // (2 * 3 * 16 * 2 * 16 * 4)


def test_warm_up_writes_no_keys_or_values(tiny_engine: CpuEngine) -> None:
    before = generate(tiny_engine, PROMPTS, greedy(5))
    tiny_engine.forward.kv_cache.fill_(3.0)
    tiny_engine.warm_up()
    assert (tiny_engine.forward.kv_cache == 0.0).all()
    assert generate(tiny_engine, PROMPTS, greedy(5)) == before


def test_stale_nan_in_the_cache_is_never_read(tiny_engine: CpuEngine) -> None:
    before = generate(tiny_engine, PROMPTS, greedy(8))
    tiny_engine.forward.kv_cache.fill_(float("nan"))
    assert generate(tiny_engine, PROMPTS, greedy(8)) == before


def test_an_id_outside_the_vocabulary_fails_its_sequence_alone(tiny_engine: CpuEngine) -> None:
    healthy = generate(tiny_engine, PROMPTS, greedy(6))
    for stranger in (-1, tiny_engine.vocab_size, 2**31 - 1):
        driver = Driver(tiny_engine, chunk=4)
        sequences = [driver.add(prompt, greedy(6)) for prompt in PROMPTS]
        poisoned = driver.add([1, stranger, 2, 3, 4, 5, 6, 7], greedy(6))
        driver.run()
        assert "not finite" in poisoned.error
        assert [sequence.outputs for sequence in sequences] == healthy


def test_a_nan_weight_fails_rows_not_the_step(tiny_model: StoredModel) -> None:
    engine = CpuEngine.load(tiny_model, Options(kv_cache_memory_bytes=4 << 20))
    engine.forward.decoder.embedding[300] = float("nan")
    driver = Driver(engine)
    sequences = [driver.add(prompt, greedy(4)) for prompt in PROMPTS]
    driver.run()
    assert [bool(sequence.error) for sequence in sequences] == [False, False, True, False]


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_draws_are_the_same_alone_and_batched(tiny_engine: CpuEngine, temperature: float) -> None:
    sampling = Sampling(max_tokens=12, temperature=temperature, top_p=0.95, seed=77)
    alone = generate(tiny_engine, PROMPTS, sampling, alone=True)
    assert generate(tiny_engine, PROMPTS, sampling) == alone
    assert generate(tiny_engine, PROMPTS, sampling, chunk=3) == alone
    assert generate(tiny_engine, PROMPTS, Sampling(max_tokens=12, temperature=temperature, seed=78)) != alone


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_row_is_drawn_at_its_own_output_position(tiny_model: StoredModel, dtype: str) -> None:
    """In torch and in C++: rows that differ in nothing else, some of them before min_tokens outputs."""
    engine = CpuEngine.load(tiny_model, Options(dtype=dtype, kv_cache_memory_bytes=4 << 20))
    count = 24
    row = RowSampling(Sampling(max_tokens=99, seed=77, min_tokens=9, stop_token_ids=tuple(range(200))), 1)
    batch = one_token_step(engine)
    batch.token_ids = np.full(count, 5, dtype=np.int32)
    batch.positions = np.zeros(count, dtype=np.int64)
    batch.slot_mapping = np.arange(count, dtype=np.int64) * engine.block_size
    batch.cu_seqlens_q = np.arange(count + 1, dtype=np.int32)
    batch.context_lens = np.ones(count, dtype=np.int32)
    batch.block_tables = np.arange(count, dtype=np.int32)[:, None]
    batch.sampled = np.arange(count, dtype=np.int32)
    batch.output_positions = np.arange(count, dtype=np.int32)[::-1] * 2
    batch.rows = [row] * count
    each = zip(engine.compute_logits(batch).numpy(), batch.output_positions.tolist(), strict=True)
    expected = [sample(logits, row, position) for logits, position in each]
    assert engine.step(batch).tokens.tolist() == expected
    assert len(set(expected)) > count // 2


def test_draws_survive_preemption(tiny_engine: CpuEngine) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=5, presence_penalty=1.0, repetition_penalty=1.2)
    expected = generate(tiny_engine, PROMPTS, sampling)
    driver = Driver(tiny_engine)
    sequences = [driver.add(prompt, sampling) for prompt in PROMPTS]
    for turn in range(6):
        driver.step()
        driver.preempt(driver.running[turn % len(driver.running)])
    driver.run()
    assert [sequence.outputs for sequence in sequences] == expected


def test_logprobs_are_transformers_own(tiny_engine: CpuEngine, tiny_model: StoredModel) -> None:
    reference = Reference.from_folder(str(tiny_model.path.parents[2] / "source"))
    driver = Driver(tiny_engine)
    sequences = [driver.add(prompt, greedy(6, logprobs=3)) for prompt in PROMPTS]
    unasked = driver.add([4, 4], greedy(6))
    driver.run()
    for sequence in sequences:
        expected = reference.logits(sequence.prompt, sequence.outputs)[:-1].log_softmax(dim=-1)
        for position, report in enumerate(sequence.logprobs):
            assert report is not None
            top = expected[position].topk(3)
            assert report.rank == 1
            assert report.top_ids == tuple(top.indices.tolist())
            assert report.logprob == report.top_logprobs[0]
            np.testing.assert_allclose(report.top_logprobs, top.values.numpy(), atol=1e-3)
    assert unasked.logprobs == [None] * 6


def test_no_logprobs_at_all_when_nobody_asks(tiny_engine: CpuEngine) -> None:
    assert tiny_engine.step(one_token_step(tiny_engine)).logprobs == []


def test_a_step_that_samples_nothing(tiny_engine: CpuEngine) -> None:
    batch = one_token_step(tiny_engine)
    batch.sampled = batch.output_positions = np.zeros(0, dtype=np.int32)
    batch.rows = []
    output = tiny_engine.step(batch)
    assert len(output.tokens) == 0
    assert output.errors == {}


def test_slots_blocks_and_positions_beyond_the_engine_are_refused(tiny_engine: CpuEngine) -> None:
    num_blocks, size = tiny_engine.num_blocks, tiny_engine.block_size
    with pytest.raises(IndexError):
        tiny_engine.step(one_token_step(tiny_engine, slot=num_blocks * size))
    with pytest.raises(IndexError):
        tiny_engine.step(one_token_step(tiny_engine, block=num_blocks))
    with pytest.raises(IndexError):
        tiny_engine.step(one_token_step(tiny_engine, position=tiny_engine.max_model_len))


def test_bfloat16_model_in_its_own_dtype(tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", torch_dtype=torch.bfloat16)
    engine = CpuEngine.load(model, Options(dtype="bfloat16", kv_cache_memory_bytes=4 << 20))
    assert engine.dtype == torch.bfloat16
    engine.warm_up()
    assert generate(engine, PROMPTS, greedy(6)) == generate(engine, PROMPTS, greedy(6), alone=True)


def test_a_start_that_cannot_fit_fails_with_the_numbers(tiny_model: StoredModel) -> None:
    with pytest.raises(EngineError, match=r"max_model_len 512 needs .* KV cache.*at most 160 tokens"):
        CpuEngine.load(tiny_model, Options(kv_cache_memory_bytes=10 * 2 * 3 * 16 * 2 * 16 * 4))
    with pytest.raises(EngineError, match="513 is not between 1 and the model's max_position_embeddings, 512"):
        CpuEngine.load(tiny_model, Options(max_model_len=513))
    with pytest.raises(EngineError, match="dtype"):
        CpuEngine.load(tiny_model, Options(dtype="int3"))


def test_the_number_of_threads_is_an_option(tiny_model: StoredModel) -> None:
    before = torch.get_num_threads()
    try:
        CpuEngine.load(tiny_model, Options(num_threads=1, kv_cache_memory_bytes=4 << 20))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
