"""RMSNorm, RoPE and the packed KV cache write in C++, at every instruction level of this machine."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.kv_cache_write import reference as kv_reference
from kernels.native.isa import Level, cpu_flags, levels_of
from kernels.native.library import load_library
from kernels.paged_attention.native import CacheShape
from kernels.paged_attention.packed import pack_keys, pack_values, unpack_keys, unpack_values
from kernels.rms_norm import reference as norm_reference
from kernels.rope import reference as rope_reference
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from tests.kernels.arrays import random_tensor, to_float32

pytestmark = pytest.mark.parametrize("level", levels_of(cpu_flags()))


def call(level: Level, function: str, *arguments: object) -> None:
    """Calls a kernel with a team of two; tensors are passed by address."""
    functions = load_library(level).functions
    team = ctypes.c_void_p(functions.tokenbus_team_new(2))
    passed = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments]
    getattr(functions, function)(team, *passed)
    functions.tokenbus_team_delete(team)


def assert_rounded_once(actual: Tensor, expected: np.ndarray) -> None:
    """bfloat16 values next to the expected ones, a little more for what cancels."""
    np.testing.assert_allclose(to_float32(actual), expected, rtol=2**-8 * 1.001, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(1, 576), (16, 576), (3, 2048), (2, 1), (4, 40), (3, 49)], ids=str)
def test_rms_norm(shape: tuple[int, int], scale: float, level: Level) -> None:
    rng = np.random.default_rng(2)
    residual = random_tensor(rng, shape, torch.float32) * scale
    weight = random_tensor(rng, shape[1:], torch.float32)
    out = torch.empty(shape, dtype=torch.bfloat16)
    call(level, "tokenbus_rms_norm", residual, weight, ctypes.c_float(1e-5), *shape, out)
    assert_rounded_once(out, norm_reference.rms_norm(to_float32(residual), to_float32(weight), 1e-5))


@pytest.mark.parametrize("head_dim", [8, 16, 64, 80, 128])
def test_rms_norm_of_heads(head_dim: int, level: Level) -> None:
    rng = np.random.default_rng(3)
    heads = random_tensor(rng, (7, head_dim), torch.bfloat16)
    weight = random_tensor(rng, (head_dim,), torch.float32)
    expected = norm_reference.rms_norm(to_float32(heads), to_float32(weight), 1e-6)
    call(level, "tokenbus_rms_norm_heads", heads, weight, ctypes.c_float(1e-6), 7, head_dim)
    assert_rounded_once(heads, expected)


@pytest.mark.parametrize("head_dim", [2, 16, 64, 80, 96, 128])
def test_rope_turns_queries_and_keys_and_leaves_values(head_dim: int, level: Level) -> None:
    rng = np.random.default_rng(5)
    table = cos_sin_table(inverse_frequencies(head_dim, 10000.0), 600)
    positions = rng.integers(0, 600, 9)
    rows = random_tensor(rng, (9, 7, head_dim), torch.bfloat16)  # 4 query heads, 2 of keys; 1 of values stays
    values = rows[:, 6].clone()
    expected = rope_reference.rope(to_float32(rows[:, :6]), positions, table)
    cos_sin = torch.from_numpy(table[positions])
    call(level, "tokenbus_rope", rows, ctypes.c_int64(7 * head_dim), cos_sin, 9, 6, head_dim)
    np.testing.assert_allclose(to_float32(rows[:, :6]), expected, rtol=2**-8, atol=1e-4)
    assert torch.equal(rows[:, 6], values)


@pytest.mark.parametrize("pack", [(pack_keys, unpack_keys), (pack_values, unpack_values)], ids=["keys", "values"])
def test_unpacking_undoes_packing(
    pack: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], level: Level
) -> None:
    cache = random_tensor(np.random.default_rng(7), (3, 32, 2, 48), torch.bfloat16)
    assert torch.equal(pack[1](pack[0](cache)), cache)


@pytest.mark.parametrize("shape", [(5, 16, 3, 64), (3, 32, 1, 128), (2, 64, 2, 80), (4, 48, 5, 16)], ids=str)
def test_kv_cache_write_touches_the_slots_and_no_others(shape: tuple[int, int, int, int], level: Level) -> None:
    rng = np.random.default_rng(8)
    num_blocks, block_size, num_kv_heads, head_dim = shape
    caches = [random_tensor(rng, shape, torch.bfloat16) for _ in "kv"]
    num_tokens = 45
    key, value = random_tensor(rng, (2, num_tokens, num_kv_heads, head_dim), torch.bfloat16)
    slots = rng.permutation(num_blocks * block_size)[:num_tokens].astype(np.int64)
    slots[[3, 20]] = -1
    expected = [to_float32(cache).copy() for cache in caches]
    kv_reference.kv_cache_write(to_float32(key), to_float32(value), expected[0], expected[1], slots)
    packed_keys, packed_values = pack_keys(caches[0]), pack_values(caches[1])
    stride = ctypes.c_int64(num_kv_heads * head_dim)
    cache_shape = ctypes.byref(CacheShape(block_size, num_kv_heads, head_dim))
    mapping = torch.from_numpy(slots)
    call(
        level,
        "tokenbus_kv_cache_write",
        *(cache_shape, key, stride, value, stride, packed_keys, packed_values, mapping, num_tokens),
    )
    np.testing.assert_array_equal(to_float32(unpack_keys(packed_keys)), expected[0])
    np.testing.assert_array_equal(to_float32(unpack_values(packed_values)), expected[1])
