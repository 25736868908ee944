"""What a group of ranks computes: the tokens of one rank, for every family, over gloo."""

import random

import pytest

from services.worker.engine.cpu import CpuEngine
from shared.messages.sampling import Sampling
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.parallel.groups import KV_CACHE_BYTES, running_group

NUM_TOKENS = 8

# A vocabulary of 384 tokens, 4 query heads and 2 key/value heads unless said.
MODELS: dict[str, tuple[int, str, dict[str, object]]] = {
    "llama, every bias": (2, "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "mistral, window, four ranks for two key heads": (4, "MistralForCausalLM", {"sliding_window": 20}),
    "qwen2, tied, biases, one key head": (2, "Qwen2ForCausalLM", {"num_key_value_heads": 1}),
    "qwen3, normalised heads, a vocabulary that does not divide": (
        4,
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 4, "vocab_size": 389},
    ),
}


def prompts_for(vocab_size: int) -> list[list[int]]:
    rng = random.Random(17)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in (1, 2, 16, 17, 40, 70)]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_one_rank(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    size, architecture, overrides = MODELS[name]
    stored = store_tiny_model(tmp_path_factory.mktemp("family"), architecture, **overrides)
    alone = CpuEngine.load(stored, Options(kv_cache_memory_bytes=KV_CACHE_BYTES))
    prompts = prompts_for(stored.config.vocab_size)
    drawn = Sampling(max_tokens=NUM_TOKENS, temperature=0.8, top_p=0.9, seed=3, logprobs=2)
    with running_group(stored, size) as group:
        group.warm_up()
        for sampling in (greedy(NUM_TOKENS), drawn):
            expected = generate(alone, prompts, sampling)
            assert generate(group, prompts, sampling) == expected
            assert generate(group, prompts, sampling, chunk=13) == expected
