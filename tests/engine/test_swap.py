"""Preempted sequences whose keys and values come back from the swap space: the same tokens."""

import pytest
import torch

from services.worker.engine.cpu import CpuEngine
from services.worker.engine.host_slots import GIB
from services.worker.engine.options import EngineError
from shared.repository.stored_model import StoredModel
from tests.engine.conftest import store_tiny_model
from tests.engine.driver import greedy
from tests.engine.options import Options
from tests.engine.scheduled import Scheduled

PROMPTS = [[number, 7, *range(20, 45)] for number in range(5, 11)]
NUM_OUTPUTS = 40
NUM_BLOCKS = 18  # some four sequences' worth


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return store_tiny_model(tmp_path_factory.mktemp("swap"), "LlamaForCausalLM", torch.bfloat16)


def run(engine: CpuEngine, num_blocks: int) -> tuple[list[list[int]], Scheduled]:
    shard = Scheduled(engine, num_blocks)
    sequences = [shard.ask(prompt, greedy(NUM_OUTPUTS)) for prompt in PROMPTS]
    shard.run()
    assert shard.errors == {}
    return [list(sequence.tokens) for sequence in sequences], shard


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_are_those_of_sequences_that_were_never_preempted(model: StoredModel, dtype: str) -> None:
    """In torch and, for bfloat16, in C++."""
    engine = CpuEngine.load(model, Options(dtype=dtype, kv_cache_memory_bytes=8 << 20, swap_space=(1 << 20) / GIB))
    assert engine.num_swap_slots > 20
    expected, plenty = run(engine, engine.num_blocks)
    assert plenty.scheduler.num_preemptions == 0
    tokens, shard = run(engine, NUM_BLOCKS)
    assert tokens == expected
    assert shard.scheduler.num_preemptions > 0 and shard.scheduler.num_swapped_blocks > 0
    assert shard.num_swapped_in > 0


def test_a_swap_space_beyond_the_memory_is_refused_by_name(model: StoredModel) -> None:
    with pytest.raises(EngineError, match=r"swap_space 99999 is more than the .* GiB of memory available"):
        CpuEngine.load(model, Options(kv_cache_memory_bytes=8 << 20, swap_space=99999.0))


def test_without_a_swap_space_nothing_is_swapped(model: StoredModel) -> None:
    engine = CpuEngine.load(model, Options(dtype="float32", kv_cache_memory_bytes=8 << 20))
    assert engine.num_swap_slots == 0
    _, shard = run(engine, NUM_BLOCKS)
    assert shard.scheduler.num_preemptions > 0 and shard.num_swapped_in == 0
