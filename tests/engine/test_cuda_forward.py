"""A step of the CUDA engine, its kernels in the emulator: close to torch in float32, and indifferent to the batch."""

import numpy as np
import pytest
import torch

from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits as SamplingLimits
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.cuda_forward import CudaForward, CudaStep
from services.worker.engine.interface import StepInput, StepOutput, Swaps
from services.worker.models.cuda import Limits
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.engine.ahead import run_ahead
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import Driver, generate, greedy
from tests.engine.options import Options
from tests.kernels.emulator.module import load_emulated

LIMITS = Limits(max_num_tokens=64, max_num_seqs=8, num_parallel=8)
BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 16, 40, 256
PROMPTS = [np.random.Generator(np.random.PCG64(n)).integers(3, 384, n).tolist() for n in (1, 2, 17, 40)]
NARROW = {"num_hidden_layers": 2, "hidden_size": 96, "head_dim": 64, "max_position_embeddings": MAX_MODEL_LEN}
MODELS = {
    "llama": ("LlamaForCausalLM", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen2, biases": ("Qwen2ForCausalLM", {"num_attention_heads": 2, "num_key_value_heads": 2}),
    "qwen3, normalised heads": ("Qwen3ForCausalLM", {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "mistral, window": ("MistralForCausalLM", {"sliding_window": 20}),
}


class EmulatedEngine:
    """Just enough of an engine for the driver."""

    device, kernels = "emulated", "cuda"
    model, model_version = "tiny", "1"
    num_swap_slots = 0
    num_blocks, block_size, max_model_len = NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN

    def __init__(self, stored: StoredModel, cache_dtype: torch.dtype = torch.bfloat16) -> None:
        config = stored.config
        self.vocab_size = config.vocab_size
        decoder = builder_of(config.architecture)(
            config, Parameters(iter_weights(stored), config.parameter_shapes(), torch.bfloat16)
        )
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        per_token = (config.num_key_value_heads, config.head_dim)
        kv_cache = torch.full((config.num_hidden_layers, 2, NUM_BLOCKS, BLOCK_SIZE, *per_token), float("nan"))
        self.forward = CudaForward(
            decoder,
            config,
            torch.from_numpy(cos_sin_table(frequencies, MAX_MODEL_LEN)),
            kv_cache.to(cache_dtype),
            LIMITS,
            load_emulated(),
            Sampling(load_emulated(), torch.float32, SamplingLimits(self.vocab_size, LIMITS.max_num_seqs, 4096, 64)),
        )

    def warm_up(self) -> None:
        raise NotImplementedError

    def step(self, batch: StepInput) -> StepOutput:
        return self.forward.run(batch)

    def launch(self, batch: StepInput) -> CudaStep:
        return self.forward.launch(batch)

    def swap(self, swaps: Swaps) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module", params=MODELS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    architecture, overrides = MODELS[request.param]
    folder = tmp_path_factory.mktemp("cuda")
    return store_tiny_model(folder, architecture, torch.bfloat16, **(NARROW | overrides))


def first_step(engine: EmulatedEngine | CpuEngine, prompts: list[list[int]], chunk: int = 512) -> StepInput:
    driver = Driver(engine, chunk=chunk, max_num_batched_tokens=LIMITS.max_num_tokens)
    for prompt in prompts:
        driver.add(prompt, greedy(2))
    batch, _ = driver._build(driver._schedule())
    return batch


def test_logits_are_as_good_as_torchs(stored: StoredModel) -> None:
    """float32 says what is right; torch's bfloat16, how far off bfloat16 may be."""
    exact = CpuEngine.load(stored, Options(dtype="float32", kv_cache_memory_bytes=8 << 20))
    rounded = CpuEngine.load(stored, Options(dtype="bfloat16", cpu_kernels="torch", kv_cache_memory_bytes=8 << 20))
    engine = EmulatedEngine(stored)
    expected = exact.compute_logits(first_step(exact, PROMPTS))
    allowed = (rounded.compute_logits(first_step(rounded, PROMPTS)) - expected).norm(dim=1)
    error = (engine.forward.compute_logits(first_step(engine, PROMPTS)) - expected).norm(dim=1)
    assert (error <= 1.5 * allowed + 1e-2 * expected.norm(dim=1)).all()


def test_tokens_are_those_of_each_sequence_alone_and_in_chunks(stored: StoredModel) -> None:
    engine = EmulatedEngine(stored)
    together = generate(engine, PROMPTS, greedy(3), max_num_batched_tokens=LIMITS.max_num_tokens)
    assert together == [
        generate(engine, [prompt], greedy(3), max_num_batched_tokens=LIMITS.max_num_tokens)[0] for prompt in PROMPTS
    ]
    assert together == generate(engine, PROMPTS, greedy(3), chunk=16, max_num_batched_tokens=LIMITS.max_num_tokens)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    architecture, overrides = MODELS["llama"]
    folder = tmp_path_factory.mktemp("cuda")
    return store_tiny_model(folder, architecture, torch.bfloat16, **(NARROW | overrides))


def test_steps_that_are_launched_ahead_go_on_with_tokens_that_only_the_device_knows(llama: StoredModel) -> None:
    """Prompts in chunks, so that most steps mix; one sequence ends early."""
    engine, num_outputs = EmulatedEngine(llama), [6, 2, 6, 6]
    expected = [
        generate(engine, [prompt], greedy(count), max_num_batched_tokens=LIMITS.max_num_tokens)[0]
        for prompt, count in zip(PROMPTS, num_outputs, strict=True)
    ]
    outputs, num_ahead = run_ahead(engine, PROMPTS, num_outputs, chunk=12)
    assert num_ahead > 5
    assert outputs == expected


def test_a_decode_step_of_a_larger_size_computes_the_same(llama: StoredModel) -> None:
    engine = EmulatedEngine(llama)
    driver = Driver(engine, max_num_batched_tokens=LIMITS.max_num_tokens)
    for prompt in PROMPTS[:3]:
        driver.add(prompt, greedy(3))
    driver.step()
    batch, _ = driver._build(driver._schedule())
    forward = engine.forward
    plain, _ = forward._compute(forward._buffers.load(batch))
    padded, is_finite = forward._compute(forward._buffers.load(batch, 8))
    torch.testing.assert_close(padded[:3], plain[:3], rtol=2e-2, atol=2e-2)  # torch rounds as the size of its product
    assert torch.equal(padded[:3].argmax(dim=1), plain[:3].argmax(dim=1))
    assert padded.shape[0] == 8 and is_finite[:3].all()


def test_columns_stay_where_they_are(llama: StoredModel) -> None:
    """As a captured step needs."""
    engine = EmulatedEngine(llama)
    buffers = engine.forward._buffers
    first = buffers.load(first_step(engine, PROMPTS[:1]), 4)
    second = buffers.load(first_step(engine, PROMPTS[:2][::-1]), 4)
    names = ("token_ids", "positions", "slot_mapping", "row_tokens", "cu_seqlens_q", "context_lens", "block_tables")
    for name in names:
        one, other = getattr(first, name), getattr(second, name)
        assert (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride()), name
    for window, items in first.items.items():
        assert items.decode.data_ptr() == second.items[window].decode.data_ptr()
        assert (items.num_decode, items.is_split) == (second.items[window].num_decode, second.items[window].is_split)


@pytest.mark.parametrize("bad", [-1, 2**31 - 1])
def test_an_id_outside_the_vocabulary_fails_its_sequence_alone(llama: StoredModel, bad: int) -> None:
    engine = EmulatedEngine(llama)
    expected = generate(engine, PROMPTS[2:], greedy(2), max_num_batched_tokens=LIMITS.max_num_tokens)
    driver = Driver(engine, max_num_batched_tokens=LIMITS.max_num_tokens)
    good = [driver.add(prompt, greedy(2)) for prompt in PROMPTS[2:]]
    failing = driver.add([5, bad, 7], greedy(2))
    driver.run()
    assert failing.error
    assert [sequence.outputs for sequence in good] == expected


def test_nan_in_a_chunk_of_which_nothing_is_sampled_is_told(llama: StoredModel) -> None:
    engine = EmulatedEngine(llama)
    batch = first_step(engine, [[*PROMPTS[3][:8], -1, *PROMPTS[3][8:]]], chunk=16)
    assert not len(batch.sampled)
    assert list(engine.step(batch).failed) == [0]


def test_an_fp8_cache_costs_little(llama: StoredModel) -> None:
    exact = CpuEngine.load(llama, Options(dtype="float32", kv_cache_memory_bytes=8 << 20))
    engine = EmulatedEngine(llama, torch.float8_e4m3fn)
    expected = exact.compute_logits(first_step(exact, PROMPTS))
    error = (engine.forward.compute_logits(first_step(engine, PROMPTS)) - expected).norm() / expected.norm()
    assert error < 0.1
