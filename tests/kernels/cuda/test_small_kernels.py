"""RMSNorm, SiLU gate, RoPE and the KV cache write: the CUDA kernels in the emulator, against their references."""

import pytest
import torch

from kernels.kv_cache_write.cuda import KvCacheWrite
from kernels.rms_norm.cuda import RmsNorm
from kernels.rope.cuda import Rope
from kernels.silu_and_mul.cuda import SiluAndMul
from tests.kernels.cuda.small_checks import (
    LARGE,
    check_fp8_cache,
    check_kv_cache_write,
    check_rms_norm,
    check_rms_norm_heads,
    check_rope,
    check_silu_and_mul,
)
from tests.kernels.emulator.module import SCHEDULES, Schedule, load_emulated
from tests.kernels.emulator.sanitized import Check

DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    found: Schedule = request.param
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 576), (1, 8), (2, 4096 + 8)], ids=str)
@pytest.mark.parametrize("adds", [True, False])
def test_rms_norm(schedule: Schedule, dtype: torch.dtype, shape: tuple[int, int], adds: bool) -> None:
    check_rms_norm(load_emulated(schedule), dtype, shape, adds)
    check_rms_norm(load_emulated(schedule), dtype, shape, adds, size=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [8, 80, 256])
def test_rms_norm_of_some_heads_in_place(schedule: Schedule, dtype: torch.dtype, head_dim: int) -> None:
    check_rms_norm_heads(load_emulated(schedule), dtype, head_dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 1536), (1, 8), (2, 2056)], ids=str)
def test_silu_and_mul(schedule: Schedule, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    check_silu_and_mul(load_emulated(schedule), dtype, shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_rope_turns_the_first_heads_alone(schedule: Schedule, dtype: torch.dtype, head_dim: int) -> None:
    check_rope(load_emulated(schedule), dtype, head_dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("is_head_major", [True, False])
def test_kv_cache_write(schedule: Schedule, dtype: torch.dtype, block_size: int, is_head_major: bool) -> None:
    check_kv_cache_write(load_emulated(schedule), dtype, block_size, is_head_major)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_fp8_cache_keeps_what_is_divided_by_its_heads_scale(schedule: Schedule, dtype: torch.dtype) -> None:
    check_fp8_cache(load_emulated(schedule), dtype)


@pytest.mark.parametrize("check", LARGE, ids=lambda check: check.__name__)
def test_offsets_beyond_32_bits(check: Check) -> None:
    check(load_emulated())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_to_do_launches_nothing(dtype: torch.dtype) -> None:
    load = load_emulated()
    RmsNorm(load, dtype, 64)(torch.empty(0, 64, dtype=dtype), torch.empty(0, 64), torch.ones(64), 1e-5)
    SiluAndMul(load, dtype, 64)(torch.empty(0, 64, dtype=dtype), torch.empty(0, 128, dtype=dtype))


def test_shapes_that_the_kernels_cannot_are_refused() -> None:
    load = load_emulated()
    with pytest.raises(ValueError, match="hidden_size 100"):
        RmsNorm(load, torch.bfloat16, 100)
    with pytest.raises(ValueError, match="intermediate_size 100"):
        SiluAndMul(load, torch.bfloat16, 100)
    with pytest.raises(ValueError, match="head_dim 72"):
        Rope(load, torch.bfloat16, 1, 72)
    with pytest.raises(ValueError, match="head_dim 68"):
        KvCacheWrite(load, torch.bfloat16, torch.bfloat16, 68)
