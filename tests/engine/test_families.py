"""Every family as a tiny random model: logits and greedy tokens equal transformers', float32."""

import random

import pytest
import torch

from services.worker.engine.cpu import CpuEngine
from shared.repository.stored_model import StoredModel
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import Driver, generate, greedy
from tests.engine.options import Options
from tests.engine.reference import LOGIT_TOLERANCE, LogitsRecorder, Reference

NUM_TOKENS = 12

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_attention_heads": 8}),
    "llama, every bias": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 rope": ("LlamaForCausalLM", {"rope_scaling": LLAMA3_SCALING, "rope_theta": 500.0}),
    "llama, one key head": ("LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 48}),
    "mistral": ("MistralForCausalLM", {}),
    "mistral, window": ("MistralForCausalLM", {"sliding_window": 20}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2, window above": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3, biases, untied": ("Qwen3ForCausalLM", {"attention_bias": True, "tie_word_embeddings": False}),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    architecture, overrides = MODELS[request.param]
    return store_tiny_model(tmp_path_factory.mktemp("family"), architecture, **overrides)


@pytest.fixture(scope="module")
def engine(model: StoredModel) -> CpuEngine:
    return CpuEngine.load(model, Options(kv_cache_memory_bytes=8 << 20))


@pytest.fixture(scope="module")
def reference(model: StoredModel) -> Reference:
    return Reference.from_folder(str(model.path.parents[2] / "source"))


@pytest.fixture(scope="module")
def prompts(model: StoredModel) -> list[list[int]]:
    rng = random.Random(17)
    shared = [rng.randrange(model.config.vocab_size) for _ in range(40)]
    lengths = (1, 2, 15, 16, 17, 33, 70, 150)
    own = [[rng.randrange(model.config.vocab_size) for _ in range(length)] for length in lengths]
    return [*own, shared + own[0], shared + own[4]]


@pytest.fixture(scope="module")
def expected(engine: CpuEngine, reference: Reference, prompts: list[list[int]]) -> list[list[int]]:
    guesses = generate(engine, prompts, greedy(NUM_TOKENS))
    return [reference.greedy(prompt, guess) for prompt, guess in zip(prompts, guesses, strict=True)]


def test_logits_and_tokens_alone(
    engine: CpuEngine, reference: Reference, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    for prompt, tokens in zip(prompts, expected, strict=True):
        recorder = LogitsRecorder(engine)
        assert generate(recorder, [prompt], greedy(NUM_TOKENS), chunk=13) == [tokens]
        actual = torch.cat(recorder.logits)
        torch.testing.assert_close(actual, reference.logits(prompt, tokens)[:-1], rtol=0, atol=LOGIT_TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 16, 512])
def test_tokens_batched_in_chunks(
    engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]], chunk: int
) -> None:
    assert generate(engine, prompts, greedy(NUM_TOKENS), chunk=chunk, max_num_batched_tokens=64) == expected


def test_tokens_with_prefix_cache(engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    driver = Driver(engine, prefix_caching=True)
    for _ in range(2):
        sequences = [driver.add(prompt, greedy(NUM_TOKENS)) for prompt in prompts]
        driver.run()
        assert [sequence.outputs for sequence in sequences] == expected
    assert sequences[-1].num_cached_tokens >= 48


def test_tokens_with_preemption(engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    driver = Driver(engine, chunk=10, max_num_batched_tokens=40)
    sequences = [driver.add(prompt, greedy(NUM_TOKENS)) for prompt in prompts]
    for turn in range(20):
        driver.step()
        if driver.running:
            driver.preempt(driver.running[turn % len(driver.running)])
    driver.run()
    assert [sequence.outputs for sequence in sequences] == expected
