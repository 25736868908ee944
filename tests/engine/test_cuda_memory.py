"""How many KV blocks fit on a device, what is said where none do, and that the engine for one is complete."""

import inspect
from dataclasses import replace

import pytest
import torch

from services.worker.engine.cuda import CudaEngine, resolve_cuda_dtype
from services.worker.engine.cuda_memory import GIB, CacheNeeds, MemoryProfile, num_cuda_blocks
from services.worker.engine.interface import Engine
from services.worker.engine.options import EngineError
from shared.repository.stored_model import StoredModel

PROFILE = MemoryProfile(total=80 * GIB, others=1 * GIB, weights=16 * GIB, activations=2 * GIB, graphs=1 * GIB)
NEEDS = CacheNeeds(block_bytes=GIB // 4, block_size=16, max_model_len=100)


def test_the_cache_gets_what_a_share_of_the_device_leaves() -> None:
    assert num_cuda_blocks(PROFILE, NEEDS, 0.9, None) == 4 * (72 - 19)


def test_what_others_have_cannot_be_had() -> None:
    assert num_cuda_blocks(replace(PROFILE, others=40 * GIB), NEEDS, 0.9, None) == 4 * (40 - 19)


def test_two_workers_share_a_device() -> None:
    second = replace(PROFILE, others=40 * GIB)
    assert num_cuda_blocks(second, NEEDS, 0.45, None) == 4 * (36 - 19)


def test_bytes_that_are_asked_for() -> None:
    assert num_cuda_blocks(PROFILE, NEEDS, 0.9, 5 * GIB) == 20
    with pytest.raises(EngineError, match=r"is 61\.00 GiB, but only 60\.00 GiB are free: of 80\.00 GiB others use"):
        num_cuda_blocks(PROFILE, NEEDS, 0.9, 61 * GIB)


@pytest.mark.parametrize(("utilization", "cache_bytes"), [(0.25, None), (0.9, GIB)])
def test_too_little_for_one_sequence_is_told_with_the_numbers(utilization: float, cache_bytes: int | None) -> None:
    with pytest.raises(EngineError) as raised:
        num_cuda_blocks(PROFILE, NEEDS, utilization, cache_bytes)
    message = str(raised.value)
    assert "max_model_len 100 needs 1.75 GiB" in message
    assert "at most 64 tokens fit" in message
    assert "weights take 16.00 GiB, activations 2.00 GiB and captured steps 1.00 GiB" in message


def test_dtypes(tiny_model: StoredModel) -> None:
    assert resolve_cuda_dtype("auto", tiny_model.config) == torch.bfloat16
    assert resolve_cuda_dtype("float16", tiny_model.config) == torch.float16
    with pytest.raises(EngineError, match="'float32' is not for engine cuda"):
        resolve_cuda_dtype("float32", tiny_model.config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(tiny_model: StoredModel) -> None:
    with pytest.raises(EngineError, match="finds no CUDA device"):
        CudaEngine.load(tiny_model, None)  # type: ignore[arg-type]  # not read


def test_the_engine_has_all_that_one_with_a_queue_has() -> None:
    """Without a device there is none to be asked; and one that lacks a name would be taken for one without a queue."""
    source = inspect.getsource(CudaEngine)
    missing = [
        name for name in Engine.__annotations__ if not hasattr(CudaEngine, name) and f"self.{name} = " not in source
    ]
    assert missing == []
    assert all(callable(getattr(CudaEngine, name)) for name in ("warm_up", "step", "swap", "launch", "compute_logits"))
