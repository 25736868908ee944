"""The real model: greedy tokens of thirty prompts equal transformers', however the engine gets to them."""

import pytest
import torch
from tokenizers import Tokenizer

from services.worker.engine.cpu import CpuEngine
from shared.repository.stored_model import StoredModel
from tests.engine.conftest import KV_CACHE_BYTES
from tests.engine.driver import Driver, generate, greedy
from tests.engine.options import Options
from tests.engine.prompts import PROMPTS
from tests.engine.reference import LOGIT_TOLERANCE, LogitsRecorder, Reference

NUM_TOKENS = 10
NUM_TOKENS_FULL = 32
BFLOAT16_GAP = 0.05


@pytest.fixture(scope="session")
def prompts(smollm: StoredModel) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(smollm.tokenizer_file))
    return [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in PROMPTS]


@pytest.fixture(scope="session")
def expected(smollm_engine: CpuEngine, smollm_reference: Reference, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy tokens; the engine's own only serve it as a guess."""
    guesses = generate(smollm_engine, prompts, greedy(NUM_TOKENS))
    return [smollm_reference.greedy(prompt, guess) for prompt, guess in zip(prompts, guesses, strict=True)]


def preempt_now_and_then(driver: Driver, most: int = 40) -> int:
    """Run to the end; after every second step one sequence loses its blocks. Returns how often one did."""
    num_preempted = 0
    while driver.running:
        driver.step()
        if driver.running and driver.num_steps % 2 == 0 and num_preempted < most:
            driver.preempt(driver.running[driver.num_steps % len(driver.running)])
            num_preempted += 1
    return num_preempted


def test_thirty_prompts_of_different_length(prompts: list[list[int]]) -> None:
    assert len(prompts) == 30
    assert len({len(prompt) for prompt in prompts}) > 15
    assert max(len(prompt) for prompt in prompts) > 512


@pytest.mark.timeout(600)
def test_batched(smollm_engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert generate(smollm_engine, prompts, greedy(NUM_TOKENS)) == expected


@pytest.mark.timeout(600)
def test_alone(smollm_engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert generate(smollm_engine, prompts, greedy(NUM_TOKENS), alone=True) == expected


@pytest.mark.timeout(600)
def test_prefix_cache(smollm_engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    driver = Driver(smollm_engine, prefix_caching=True)
    for _ in range(2):
        sequences = [driver.add(prompt, greedy(NUM_TOKENS)) for prompt in prompts]
        driver.run()
        assert [sequence.outputs for sequence in sequences] == expected
    num_cached_tokens = sum(sequence.num_cached_tokens for sequence in sequences)
    assert num_cached_tokens > sum(len(prompt) for prompt in prompts) / 2


@pytest.mark.timeout(600)
def test_chunks_of_16_tokens(smollm_engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert generate(smollm_engine, prompts, greedy(NUM_TOKENS), chunk=16, max_num_batched_tokens=128) == expected


@pytest.mark.timeout(600)
def test_forced_preemption(smollm_engine: CpuEngine, prompts: list[list[int]], expected: list[list[int]]) -> None:
    driver = Driver(smollm_engine, chunk=64, prefix_caching=True)
    sequences = [driver.add(prompt, greedy(NUM_TOKENS)) for prompt in prompts]
    assert preempt_now_and_then(driver) >= 6
    assert [sequence.outputs for sequence in sequences] == expected


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("expected")
def test_logits(smollm_engine: CpuEngine, smollm_reference: Reference, prompts: list[list[int]]) -> None:
    recorder = LogitsRecorder(smollm_engine)
    driver = Driver(recorder, chunk=4096, max_num_batched_tokens=4096)
    for prompt in prompts:
        driver.add(prompt, greedy(2))
    driver.step()
    for row, prompt in zip(recorder.logits[0], prompts, strict=True):
        torch.testing.assert_close(row, smollm_reference.logits(prompt, [])[0], rtol=0, atol=LOGIT_TOLERANCE)


@pytest.mark.timeout(600)
def test_logits_while_decoding(
    smollm_engine: CpuEngine, smollm_reference: Reference, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    for index in (0, 8, 17, 28):
        recorder = LogitsRecorder(smollm_engine)
        generate(recorder, [prompts[index]], greedy(NUM_TOKENS), chunk=50)
        actual = torch.cat(recorder.logits)
        wanted = smollm_reference.logits(prompts[index], expected[index])[:-1]
        torch.testing.assert_close(actual, wanted, rtol=0, atol=LOGIT_TOLERANCE)


def check_bfloat16(smollm: StoredModel, prompts: list[list[int]], num_tokens: int) -> None:
    options = Options(dtype="bfloat16", max_model_len=2048, kv_cache_memory_bytes=KV_CACHE_BYTES)
    reference = Reference.from_stored_llama(smollm, rounded_to=torch.bfloat16)
    outputs = generate(CpuEngine.load(smollm, options), prompts, greedy(num_tokens))
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = reference.logits(prompt, output)[:-1]
        differences = (logits.argmax(dim=-1) != torch.tensor(output)).nonzero()
        if len(differences):
            first, second = logits[int(differences[0])].topk(2).values.tolist()
            assert first - second <= BFLOAT16_GAP


@pytest.mark.timeout(600)
def test_bfloat16_first_differs_where_two_tokens_are_nearly_equal(
    smollm: StoredModel, prompts: list[list[int]]
) -> None:
    check_bfloat16(smollm, prompts, NUM_TOKENS)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_longer_outputs_of_every_kind_of_run(
    smollm_engine: CpuEngine, smollm_reference: Reference, prompts: list[list[int]]
) -> None:
    sampling = greedy(NUM_TOKENS_FULL)
    outputs = generate(smollm_engine, prompts, sampling)
    assert [smollm_reference.greedy(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)] == outputs
    assert generate(smollm_engine, prompts, sampling, alone=True) == outputs
    assert generate(smollm_engine, prompts, sampling, chunk=33, prefix_caching=True) == outputs
    driver = Driver(smollm_engine, chunk=200)
    sequences = [driver.add(prompt, sampling) for prompt in prompts]
    preempt_now_and_then(driver)
    assert [sequence.outputs for sequence in sequences] == outputs
