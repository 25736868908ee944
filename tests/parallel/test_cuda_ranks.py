"""The CUDA decoder as a rank of a group, its kernels in the emulator: ranks agree, and are as good as one alone."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels.cuda.module import Argument, Dim3, KernelModule
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.sampling.cuda import Sampling
from kernels.sampling.cuda_rows import Limits as SamplingLimits
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.cuda_forward import CudaForward
from services.worker.engine.interface import StepInput
from services.worker.models.decoder import Decoder
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from services.worker.models.shards import own_config, own_weights
from shared.repository.config import ModelConfig
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights
from tests.engine.conftest import store_tiny_model
from tests.engine.options import Options
from tests.engine.test_cuda_forward import (
    BLOCK_SIZE,
    LIMITS,
    MAX_MODEL_LEN,
    NARROW,
    NUM_BLOCKS,
    PROMPTS,
    first_step,
)
from tests.kernels.emulator.module import load_emulated
from tests.parallel.threads import Meeting, ThreadRank

SIZE = 2
MODELS = {
    "llama": ("LlamaForCausalLM", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen3, one key head for both, a vocabulary that does not divide": (
        "Qwen3ForCausalLM",
        {"num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 385},
    ),
}
_emulator = threading.Lock()


class TakingTurns:
    """The emulator runs a launch at a time."""

    def __init__(self, module: KernelModule) -> None:
        self._module = module

    def launch(
        self, instance: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        with _emulator:
            self._module.launch(instance, grid, block, arguments, shared_bytes)


def load(source: Path, instances: Sequence[str]) -> KernelModule:
    with _emulator:
        return TakingTurns(load_emulated()(source, instances))


def sampling_of(vocab_size: int) -> Sampling:
    return Sampling(load, torch.float32, SamplingLimits(vocab_size, LIMITS.max_num_seqs, 1024, 64))


def forward_of(stored: StoredModel, rank: ThreadRank) -> CudaForward:
    config, own = stored.config, own_config(stored.config, rank)
    weights = own_weights(config, iter_weights(stored), rank)
    decoder = builder_of(config.architecture)(own, Parameters(weights, own.parameter_shapes(), torch.bfloat16))
    return forward_with(decoder.shared(config.vocab_size, rank), own, config.vocab_size)


def forward_with(decoder: Decoder, config: ModelConfig, vocab_size: int) -> CudaForward:
    """config: of the rank's part; vocab_size: of the whole."""
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    shape = (config.num_hidden_layers, 2, NUM_BLOCKS, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    return CudaForward(
        decoder,
        config,
        torch.from_numpy(cos_sin_table(frequencies, MAX_MODEL_LEN)),
        torch.full(shape, float("nan"), dtype=torch.bfloat16),
        LIMITS,
        load,
        sampling_of(vocab_size),
    )


@pytest.fixture(scope="module", params=MODELS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    architecture, overrides = MODELS[request.param]
    folder = tmp_path_factory.mktemp("cuda")
    return store_tiny_model(folder, architecture, torch.bfloat16, **(NARROW | overrides))


@pytest.fixture(scope="module")
def exact(stored: StoredModel) -> CpuEngine:
    return CpuEngine.load(stored, Options(dtype="float32", kv_cache_memory_bytes=8 << 20))


def test_logits_are_as_good_as_torchs_and_the_same_on_all_ranks(stored: StoredModel, exact: CpuEngine) -> None:
    batch = first_step(exact, PROMPTS)
    first, second = Meeting(SIZE).run(lambda rank: forward_of(stored, rank).compute_logits(batch))
    assert torch.equal(first, second)
    rounded = CpuEngine.load(stored, Options(dtype="bfloat16", cpu_kernels="torch", kv_cache_memory_bytes=8 << 20))
    expected = exact.compute_logits(batch)
    allowed = (rounded.compute_logits(batch) - expected).norm(dim=1)
    error = (first - expected).norm(dim=1)
    assert (error <= 1.5 * allowed + 1e-2 * expected.norm(dim=1)).all()


@pytest.mark.parametrize("bad", [-1, 2**31 - 1])
def test_an_id_outside_the_vocabulary_fails_its_sequence_alone(stored: StoredModel, exact: CpuEngine, bad: int) -> None:
    """The first id after the last is in the last rank's part, where that ends in rows of no token."""
    bad = min(bad, stored.config.vocab_size)
    batch = first_step(exact, [PROMPTS[2], [5, bad, 7]])
    for output in Meeting(SIZE).run(lambda rank: forward_of(stored, rank).run(batch)):
        assert list(output.failed) == [1] and list(output.errors) == [1]


def test_values_that_one_rank_alone_has_are_told_by_all(stored: StoredModel, exact: CpuEngine) -> None:
    """The last layer's keys and values of a token that is not sampled are seen by nobody but their own rank."""
    batch = first_step(exact, [PROMPTS[3]], chunk=16)
    assert not len(batch.sampled)

    def spoil_and_run(rank: ThreadRank) -> list[int]:
        forward = forward_of(stored, rank)
        if rank.rank == SIZE - 1:
            attention = forward._decoder.decoder.layers[-1].attention
            first_value = (attention.num_heads + attention.num_kv_heads) * attention.head_dim
            attention.query_key_value.weight[first_value] = float("inf")
        return list(forward.run(batch).failed)

    assert Meeting(SIZE).run(spoil_and_run) == [[0], [0]]


def test_a_step_that_samples_nothing_is_computed(stored: StoredModel, exact: CpuEngine) -> None:
    batch: StepInput = first_step(exact, [PROMPTS[3]], chunk=16)
    for output in Meeting(SIZE).run(lambda rank: forward_of(stored, rank).run(batch)):
        assert not len(output.tokens) and not output.failed
