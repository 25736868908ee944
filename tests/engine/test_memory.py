"""How many KV blocks a start gets, from numbers alone."""

from pathlib import Path

import pytest
import torch

from bench.gpu_check.models import SMOLLM2
from services.worker.engine import memory
from services.worker.engine.memory import (
    AUTOMATIC_LIMIT_BYTES,
    GIB,
    available_memory_bytes,
    claim_first_blocks,
    memory_needs,
    num_kv_blocks,
)
from services.worker.engine.options import EngineError, resolve_max_model_len
from tests.engine.options import Options

BLOCK_BYTES = 2 * 30 * 16 * 3 * 64 * 2


def test_needs_of_a_model() -> None:
    needs = memory_needs(SMOLLM2, Options(), 8192, 2)
    assert needs.weights == 134_515_008 * 2
    assert needs.block == BLOCK_BYTES
    assert 0 < needs.activations < GIB // 4


def test_given_bytes_are_taken_as_they_are() -> None:
    options = Options(kv_cache_memory_bytes=1000 * BLOCK_BYTES + 5)
    assert num_kv_blocks(SMOLLM2, options, 8192, 2, 8 * GIB) == 1000


def test_given_bytes_beyond_the_machine_are_refused() -> None:
    with pytest.raises(EngineError, match=r"kv_cache_memory_bytes is 2\.00 GiB.*1\.50 GiB of memory available"):
        num_kv_blocks(SMOLLM2, Options(kv_cache_memory_bytes=2 * GIB), 8192, 2, 3 * GIB // 2)


def test_the_automatic_size_takes_a_share_of_what_is_available() -> None:
    options = Options(gpu_memory_utilization=0.5)
    needs = memory_needs(SMOLLM2, options, 8192, 2)
    num_blocks = num_kv_blocks(SMOLLM2, options, 8192, 2, 4 * GIB)
    taken = needs.weights + needs.activations + num_blocks * BLOCK_BYTES * 31 / 30
    assert 2 * GIB - 2 * BLOCK_BYTES < taken <= 2 * GIB


def test_the_automatic_size_stops_at_its_limit_and_at_what_can_be_used() -> None:
    assert num_kv_blocks(SMOLLM2, Options(), 8192, 2, 1000 * GIB) == AUTOMATIC_LIMIT_BYTES // BLOCK_BYTES
    assert num_kv_blocks(SMOLLM2, Options(max_num_seqs=2), 160, 2, 1000 * GIB) == 20


def test_one_long_sequence_may_pass_the_automatic_limit() -> None:
    long = 2 * AUTOMATIC_LIMIT_BYTES // BLOCK_BYTES * 16
    assert num_kv_blocks(SMOLLM2, Options(max_num_batched_tokens=16), long, 2, 1000 * GIB) == long // 16


def test_a_sequence_that_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError) as refused:
        num_kv_blocks(SMOLLM2, Options(), 8192, 2, GIB // 2)
    message = str(refused.value)
    assert "max_model_len 8192 needs 0.18 GiB of KV cache" in message
    assert "of 0.50 GiB available memory gpu_memory_utilization 0.9 leaves" in message
    assert "tokens fit" in message


def test_small_sizes_are_told_too() -> None:
    with pytest.raises(EngineError, match=r"needs 360\.0 KiB of KV cache, but kv_cache_memory_bytes is 97\.7 KiB"):
        num_kv_blocks(SMOLLM2, Options(kv_cache_memory_bytes=100_000), 16, 2, 1000 * GIB)


def test_no_memory_at_all() -> None:
    with pytest.raises(EngineError, match="at most 0 tokens fit"):
        num_kv_blocks(SMOLLM2, Options(), 16, 2, 0)


def test_a_control_group_bounds_what_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", limit)
    monkeypatch.setattr(memory, "_CGROUP_USED", used)
    assert available_memory_bytes() > 0
    limit.write_text("max\n")
    assert available_memory_bytes() > 1000
    limit.write_text("5000\n")
    used.write_text("4000\n")
    assert available_memory_bytes() == 1000
    used.write_text("6000\n")
    assert available_memory_bytes() == 0


def test_max_model_len() -> None:
    assert resolve_max_model_len(None, SMOLLM2) == 8192
    assert resolve_max_model_len(100, SMOLLM2) == 100
    for bad in (0, 8193):
        with pytest.raises(EngineError, match=str(bad)):
            resolve_max_model_len(bad, SMOLLM2)


@pytest.mark.parametrize(("num_bytes", "claimed"), [(0, 0), (1 << 20, 5), (2 * 2 * 5 * 8 * 2 * 3 // 5, 3)])
def test_the_first_blocks_are_claimed(num_bytes: int, claimed: int) -> None:
    kv_cache = torch.ones((2, 2, 5, 8), dtype=torch.bfloat16)
    assert claim_first_blocks(kv_cache, num_bytes) == claimed
    assert (kv_cache[:, :, :claimed] == 0).all()
    assert (kv_cache[:, :, claimed:] == 1).all()
