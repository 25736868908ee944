"""RMSNorm, SiLU gate, RoPE and the KV cache write: the CUDA kernels in the emulator, against their references."""

import numpy as np
import pytest
import torch

from kernels.kv_cache_write import reference as kv_reference
from kernels.kv_cache_write.cuda import KvCacheWrite
from kernels.rms_norm import reference as norm_reference
from kernels.rms_norm.cuda import RmsNorm, RmsNormHeads
from kernels.rope import reference as rope_reference
from kernels.rope.cuda import Rope
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.silu_and_mul import reference as silu_reference
from kernels.silu_and_mul.cuda import SiluAndMul
from tests.kernels.arrays import assert_close, random_tensor, to_float32
from tests.kernels.emulator.module import SCHEDULES, Schedule, load_emulated

DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    found: Schedule = request.param
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 576), (1, 8), (2, 4096 + 8)], ids=str)
@pytest.mark.parametrize("adds", [True, False])
def test_rms_norm(schedule: Schedule, dtype: torch.dtype, shape: tuple[int, int], adds: bool) -> None:
    rng = np.random.default_rng(1)
    residual, weight = random_tensor(rng, shape, torch.float32), random_tensor(rng, shape[1:], torch.float32)
    x = random_tensor(rng, shape, dtype) if adds else None
    total = residual.numpy() + (to_float32(x) if x is not None else 0)
    out = torch.full(shape, float("nan"), dtype=dtype)
    RmsNorm(load_emulated(schedule), dtype, shape[1])(out, residual, weight, 1e-5, x)
    assert_close(residual, total, torch.float32)
    assert_close(out, norm_reference.rms_norm(total, weight.numpy(), 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [8, 80, 256])
def test_rms_norm_of_some_heads_in_place(schedule: Schedule, dtype: torch.dtype, head_dim: int) -> None:
    rng = np.random.default_rng(6)
    heads, weight = random_tensor(rng, (3, 9, head_dim), dtype), random_tensor(rng, (head_dim,), torch.float32)
    before = heads.clone()
    RmsNormHeads(load_emulated(schedule), dtype, head_dim)(heads[:, 2:7], weight, 1e-6)
    expected = norm_reference.rms_norm(to_float32(before[:, 2:7]), weight.numpy(), 1e-6)
    assert_close(heads[:, 2:7], expected, dtype)
    assert torch.equal(heads[:, :2], before[:, :2]) and torch.equal(heads[:, 7:], before[:, 7:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 1536), (1, 8), (2, 2056)], ids=str)
def test_silu_and_mul(schedule: Schedule, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    gate_up = random_tensor(np.random.default_rng(2), (shape[0], 2 * shape[1]), dtype) * 5
    out = torch.full(shape, float("nan"), dtype=dtype)
    SiluAndMul(load_emulated(schedule), dtype, shape[1])(out, gate_up)
    assert_close(out, silu_reference.silu_and_mul(to_float32(gate_up)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_rope_turns_the_first_heads_alone(schedule: Schedule, dtype: torch.dtype, head_dim: int) -> None:
    rng = np.random.default_rng(3)
    num_heads, num_untouched = 5, 2
    heads = random_tensor(rng, (4, (num_heads + num_untouched) * head_dim), dtype)
    before = heads.clone()
    table = cos_sin_table(inverse_frequencies(head_dim, 10000.0, None), 100)
    positions = torch.tensor([0, 99, 7, 7])
    Rope(load_emulated(schedule), dtype, num_heads, head_dim)(heads, torch.from_numpy(table), positions)
    turned, rest = heads.split([num_heads * head_dim, num_untouched * head_dim], dim=1)
    old = to_float32(before[:, : num_heads * head_dim]).reshape(4, num_heads, head_dim)
    assert_close(turned.reshape(4, num_heads, head_dim), rope_reference.rope(old, positions.numpy(), table), dtype)
    assert torch.equal(rest, before[:, num_heads * head_dim :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("is_head_major", [True, False])
def test_kv_cache_write(schedule: Schedule, dtype: torch.dtype, block_size: int, is_head_major: bool) -> None:
    rng = np.random.default_rng(4)
    num_heads, head_dim, num_blocks = 3, 80, 5
    key_cache, value_cache = new_caches((num_blocks, block_size, num_heads, head_dim), dtype, is_head_major)
    qkv = random_tensor(rng, (6, 4 * num_heads, head_dim), dtype)
    keys, values = qkv[:, 2 * num_heads : 3 * num_heads], qkv[:, 3 * num_heads :]
    slots = torch.tensor([0, block_size * num_blocks - 1, -1, block_size, 3, block_size + 1])
    expected = to_float32(key_cache), to_float32(value_cache)
    kv_reference.kv_cache_write(to_float32(keys), to_float32(values), *expected, slots.numpy())
    KvCacheWrite(load_emulated(schedule), dtype, dtype, head_dim)(key_cache, value_cache, keys, values, slots)
    assert np.array_equal(to_float32(key_cache), expected[0], equal_nan=True)
    assert np.array_equal(to_float32(value_cache), expected[1], equal_nan=True)


def new_caches(
    shape: tuple[int, int, int, int], dtype: torch.dtype, is_head_major: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of NaN, [N, B, K, D]; in memory [N, K, B, D] or as they are."""
    num_blocks, block_size, num_heads, head_dim = shape
    memory = (num_blocks, num_heads, block_size, head_dim) if is_head_major else shape
    caches = torch.full((2, *memory), float("nan"), dtype=torch.float32).to(dtype)
    if is_head_major:
        caches = caches.transpose(2, 3)
    return caches[0], caches[1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_fp8_cache_keeps_what_is_divided_by_its_heads_scale(schedule: Schedule, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    num_heads, head_dim = 2, 64
    shape = (2, 16, num_heads, head_dim)
    key_cache, value_cache = new_caches(shape, torch.float8_e4m3fn, False)
    keys, values = (random_tensor(rng, (3, num_heads, head_dim), dtype) * 100 for _ in range(2))
    key_scales, value_scales = torch.tensor([0.5, 2.0]), torch.tensor([1.0, 4.0])
    slots = torch.tensor([5, 16, 31])
    KvCacheWrite(load_emulated(schedule), dtype, torch.float8_e4m3fn, head_dim)(
        key_cache, value_cache, keys, values, slots, key_scales, value_scales
    )
    for cache, tokens, scales in ((key_cache, keys, key_scales), (value_cache, values, value_scales)):
        wanted = (tokens.float() / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(cache.flatten(0, 1)[slots].view(torch.uint8), wanted.view(torch.uint8))


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
