"""The C++ engine against torch's: as close to float32 as torch's own bfloat16, and indifferent to the batch."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.linear.arena import WeightArena
from kernels.linear.packing import PackedLinear
from kernels.native.isa import Level, cpu_flags, levels_of
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.options import EngineError
from shared.messages.sampling import Sampling
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import Driver, generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LogitsRecorder
from tests.engine.test_families import MODELS

LEVELS = levels_of(cpu_flags())
KV_BYTES = 8 << 20
PROMPTS = [
    [int(token) for token in np.random.Generator(np.random.PCG64(length)).integers(3, 384, length)]
    for length in (1, 2, 15, 16, 17, 33, 70, 150, 300)
]
MORE_MODELS = MODELS | {
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_attention_heads": 8, "head_dim": 16}),
    "an inner size to pad": ("LlamaForCausalLM", {"intermediate_size": 90, "mlp_bias": True}),
    "a vocabulary to pad": ("LlamaForCausalLM", {"vocab_size": 397}),
}


def options(level: Level, **others: object) -> Options:
    return Options(dtype="bfloat16", cpu_kernels=level, kv_cache_memory_bytes=KV_BYTES, **others)  # type: ignore[arg-type]


def logits_of(engine: CpuEngine, prompts: list[list[int]], **how: int | bool) -> dict[int, torch.Tensor]:
    """By prompt length: the logits of three greedy tokens, each prompt in a batch with the others or alone."""
    recorder = LogitsRecorder(engine)
    found: dict[int, list[torch.Tensor]] = {}
    driver = Driver(recorder, **how)  # type: ignore[arg-type]
    for prompt in prompts:
        driver.add(prompt, greedy(3))
    while driver.running:
        before = {id(sequence): len(sequence.outputs) for sequence in driver.running}
        running, seen = list(driver.running), len(recorder.logits)
        driver.step()
        grown = [sequence for sequence in running if len(sequence.outputs) > before[id(sequence)]]
        rows = torch.cat(recorder.logits[seen:])
        for sequence, row in zip(grown, rows, strict=True):
            found.setdefault(len(sequence.prompt), []).append(row)
    return {length: torch.stack(rows) for length, rows in found.items()}


@pytest.fixture(scope="module", params=MORE_MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    architecture, overrides = MORE_MODELS[request.param]
    return store_tiny_model(tmp_path_factory.mktemp("native"), architecture, torch.bfloat16, **overrides)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return store_tiny_model(tmp_path_factory.mktemp("native"), "LlamaForCausalLM", torch.bfloat16)


@pytest.mark.parametrize("level", LEVELS)
def test_logits_are_as_good_as_torchs(model: StoredModel, level: Level) -> None:
    """Over all families: the error against float32 is no larger than that of torch in bfloat16, give or take a half."""
    plain = {"kv_cache_memory_bytes": KV_BYTES}
    exact = CpuEngine.load(model, Options(dtype="float32", **plain))  # type: ignore[arg-type]
    in_torch = CpuEngine.load(model, Options(dtype="bfloat16", cpu_kernels="torch", **plain))  # type: ignore[arg-type]
    native = CpuEngine.load(model, options(level))
    assert native.forward.kernels == level
    for prompt in PROMPTS:
        expected = first_logits(exact, prompt)
        error = (first_logits(native, prompt) - expected).norm()
        assert error <= 1.5 * (first_logits(in_torch, prompt) - expected).norm() + 1e-3 * expected.norm()


def first_logits(engine: CpuEngine, prompt: list[int]) -> torch.Tensor:
    recorder = LogitsRecorder(engine)
    generate(recorder, [prompt], greedy(1))
    return recorder.logits[0][0]


@pytest.mark.parametrize("level", LEVELS)
def test_a_sequence_is_the_same_alone_batched_and_in_chunks(model: StoredModel, level: Level) -> None:
    """To the last bit: no sum depends on what else is computed."""
    engine = CpuEngine.load(model, options(level))
    batched = logits_of(engine, PROMPTS)
    chunked = logits_of(engine, PROMPTS, chunk=13, max_num_batched_tokens=64)
    for prompt in PROMPTS:
        alone = logits_of(engine, [prompt])[len(prompt)]
        assert torch.equal(batched[len(prompt)], alone)
        assert torch.equal(chunked[len(prompt)], alone)


@pytest.mark.parametrize("quantization", ["int8"])
def test_quantised_weights_too(model: StoredModel, quantization: str) -> None:
    engine = CpuEngine.load(model, options(LEVELS[-1], quantization=quantization))
    exact = CpuEngine.load(model, Options(dtype="float32", kv_cache_memory_bytes=KV_BYTES))
    batched = logits_of(engine, PROMPTS)
    for prompt in PROMPTS:
        assert torch.equal(batched[len(prompt)], logits_of(engine, [prompt])[len(prompt)])
        expected = first_logits(exact, prompt)
        error = (first_logits(engine, prompt) - expected).norm() / expected.norm()
        assert error < 0.15


def test_draws_are_the_same_alone_and_batched_and_as_torch_draws_them(llama: StoredModel) -> None:
    samplings = [
        Sampling(max_tokens=8, temperature=0.9, seed=1),
        Sampling(max_tokens=8, temperature=0.7, top_p=0.8, seed=2),
        Sampling(max_tokens=8, temperature=1.3, top_k=7, min_p=0.05, seed=3, frequency_penalty=0.5),
        Sampling(max_tokens=8, temperature=0.0, repetition_penalty=1.2, logprobs=3),
        Sampling(max_tokens=8, temperature=0.0),
        Sampling(max_tokens=8, temperature=0.0, min_tokens=4, eos_token_ids=(5, 9), allowed_token_ids=(5, 9, 200)),
    ]
    engine = CpuEngine.load(llama, options(LEVELS[-1]))
    driver = Driver(engine)
    together = [driver.add(PROMPTS[5], sampling) for sampling in samplings]
    driver.run()
    for sequence, sampling in zip(together, samplings, strict=True):
        alone = Driver(engine)
        same = alone.add(PROMPTS[5], sampling)
        alone.run()
        assert (same.outputs, same.logprobs) == (sequence.outputs, sequence.logprobs)
        assert bool(sequence.logprobs[0]) == (sampling.logprobs is not None)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_among_equal_logits_the_lowest_id_wins_whoever_finds_it(llama: StoredModel, num_threads: int) -> None:
    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in iter_weights(llama):
            yield name, tensor[:96].repeat(4, 1) if name == "lm_head.weight" else tensor

    before = torch.get_num_threads()
    try:
        engine = CpuEngine("tiny", "1", llama.config, weights(), options(LEVELS[-1], num_threads=num_threads))
    finally:
        torch.set_num_threads(before)
    for prompt in PROMPTS:
        recorder = LogitsRecorder(engine)
        driver, plain = Driver(engine), Driver(recorder)
        sequence, recorded = driver.add(prompt, greedy(4)), plain.add(prompt, greedy(4))
        driver.run()
        plain.run()
        assert sequence.outputs == recorded.outputs
        assert sequence.outputs == [int(row.numpy().argmax()) for rows in recorder.logits for row in rows]
        assert max(sequence.outputs) < 96


@pytest.mark.parametrize("level", LEVELS)
def test_an_id_outside_the_vocabulary_fails_its_sequence_alone(llama: StoredModel, level: Level) -> None:
    engine = CpuEngine.load(llama, options(level))
    expected = generate(engine, [PROMPTS[3], PROMPTS[5]], greedy(4))
    for bad in (-1, engine.vocab_size, 2**31 - 1):
        driver = Driver(engine)
        good = [driver.add(PROMPTS[3], greedy(4)), driver.add(PROMPTS[5], greedy(4))]
        failing = driver.add([5, bad, 7], greedy(4))
        driver.run()
        assert failing.error
        assert [sequence.outputs for sequence in good] == expected


def test_stale_nan_is_never_read_and_spoiled_blocks_are_told(llama: StoredModel) -> None:
    engine = CpuEngine.load(llama, options(LEVELS[-1]))
    expected = generate(engine, PROMPTS, greedy(4))
    engine.forward.kv_cache.fill_(float("nan"))
    assert generate(engine, PROMPTS, greedy(4)) == expected
    engine.forward.kv_cache.zero_()
    driver = Driver(engine)
    driver.add([5, -1, 7], greedy(1))
    batch, _ = driver._build(driver._schedule())
    output = engine.step(batch)
    assert list(output.errors) == [0]
    assert output.spoiled_blocks == [int(batch.block_tables[0, 0])]


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("name", ["k_proj", "v_proj"])
def test_nan_that_begins_in_any_layer_fails_a_chunk_of_which_nothing_is_sampled(
    llama: StoredModel, layer: int, name: str
) -> None:
    """In the last one too, most of which is computed for sampled tokens alone."""
    poisoned = f"model.layers.{layer}.self_attn.{name}.weight"
    weights = dict(iter_weights(llama))
    weights[poisoned] = torch.full_like(weights[poisoned], float("nan"))
    engine = CpuEngine(llama.name, llama.version, llama.config, weights.items(), options(LEVELS[-1]))
    driver = Driver(engine, chunk=16)
    driver.add(PROMPTS[6], greedy(1))
    batch, _ = driver._build(driver._schedule())
    assert not len(batch.sampled)
    output = engine.step(batch)
    assert list(output.failed) == [0]
    assert output.spoiled_blocks == [int(batch.block_tables[0, 0])]


def test_what_reaches_beyond_the_engine_is_refused(llama: StoredModel) -> None:
    engine = CpuEngine.load(llama, options(LEVELS[-1]))
    driver = Driver(engine)
    driver.add(PROMPTS[2], greedy(1))
    batch, _ = driver._build(driver._schedule())
    fine = engine.step(batch).tokens.tolist()
    for column, value in (
        ("positions", engine.max_model_len),
        ("positions", -1),
        ("slot_mapping", engine.num_blocks * engine.block_size),
        ("slot_mapping", -2),
        ("block_tables", engine.num_blocks),
        ("block_tables", -1),
        ("context_lens", 17),
    ):
        array = getattr(batch, column)
        kept = array.copy()
        array.flat[-1] = value
        with pytest.raises(IndexError, match="within"):
            engine.step(batch)
        array[:] = kept
    assert engine.step(batch).tokens.tolist() == fine


def test_warm_up_writes_no_keys_or_values(llama: StoredModel) -> None:
    engine = CpuEngine.load(llama, options(LEVELS[-1]))
    engine.forward.kv_cache.fill_(3.0)
    engine.warm_up()
    assert (engine.forward.kv_cache == 0.0).all()


@pytest.mark.parametrize("num_threads", [2, 4, 8])
def test_tokens_owe_nothing_to_who_computed_the_steps_before(llama: StoredModel, num_threads: int) -> None:
    """More threads than processors: some come late to a step or miss it. What they found in an earlier one is no
    candidate."""
    before = torch.get_num_threads()
    try:
        engine = CpuEngine.load(llama, options(LEVELS[-1], num_threads=num_threads))
    finally:
        torch.set_num_threads(before)
    expected = generate(engine, PROMPTS, greedy(4))
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        assert generate(engine, PROMPTS, greedy(4)) == expected
        assert generate(engine, [prompt], greedy(4)) == [tokens]


def test_the_weights_memory_is_as_large_as_the_weights(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each matrix has room once, whatever is tied to it, and at most a cache line more than it fills."""
    arenas: list[tuple[int, list[int]]] = []

    class RecordedArena(WeightArena):
        def __init__(self, num_bytes: int) -> None:
            super().__init__(num_bytes)
            self.placed: list[int] = []
            arenas.append((num_bytes, self.placed))

        def place(self, packed: PackedLinear) -> PackedLinear:
            self.placed.append(packed.weight.nbytes)
            return super().place(packed)

    monkeypatch.setattr("services.worker.models.native.WeightArena", RecordedArena)
    CpuEngine.load(model, options(LEVELS[-1]))
    ((num_bytes, placed),) = arenas
    assert sum(placed) <= num_bytes <= sum(placed) + 64 * len(placed)


def test_torch_takes_over_where_the_kernels_cannot(tmp_path: Path) -> None:
    odd = store_tiny_model(tmp_path, "LlamaForCausalLM", torch.bfloat16, head_dim=24)
    engine = CpuEngine.load(odd, Options(dtype="bfloat16", kv_cache_memory_bytes=KV_BYTES))
    assert engine.forward.kernels == "torch"
    assert engine.fallback_reason == "head_dim 24 is not a multiple of 16"
    with pytest.raises(EngineError, match="cpu_kernels avx2 cannot be used: head_dim 24"):
        CpuEngine.load(odd, options("avx2"))
    with pytest.raises(EngineError, match="quantization int8 needs the C\\+\\+ kernels"):
        CpuEngine.load(odd, Options(dtype="bfloat16", kv_cache_memory_bytes=KV_BYTES, quantization="int8"))


def test_heads_beyond_the_memory_of_a_block_of_rows_are_torchs(tmp_path: Path) -> None:
    large = store_tiny_model(tmp_path, "LlamaForCausalLM", torch.bfloat16, head_dim=272)
    engine = CpuEngine.load(large, Options(dtype="bfloat16", kv_cache_memory_bytes=KV_BYTES))
    assert engine.forward.kernels == "torch"
    assert engine.fallback_reason == "head_dim 272 is more than 256"


def test_without_a_compiler_torch_takes_over(
    llama: StoredModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kernels.native import build, library

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "default_cache_dir", lambda: tmp_path)
    library.load_library.cache_clear()
    try:
        engine = CpuEngine.load(llama, Options(dtype="bfloat16", kv_cache_memory_bytes=KV_BYTES))
    finally:
        library.load_library.cache_clear()
    assert engine.forward.kernels == "torch"
    assert "g++ is not on the PATH" in str(engine.fallback_reason)
    asked = CpuEngine.load(llama, Options(dtype="bfloat16", cpu_kernels="torch", kv_cache_memory_bytes=KV_BYTES))
    assert generate(engine, PROMPTS, greedy(4)) == generate(asked, PROMPTS, greedy(4))


def test_what_does_not_go_together_is_refused(llama: StoredModel) -> None:
    with pytest.raises(EngineError, match="needs a GGUF file"):
        CpuEngine.load(llama, options(LEVELS[-1], quantization="gguf"))
    with pytest.raises(EngineError, match="dtype is float32"):
        CpuEngine.load(llama, Options(dtype="float32", kv_cache_memory_bytes=KV_BYTES, quantization="int8"))
