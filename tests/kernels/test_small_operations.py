"""RMSNorm, SiLU gate, RoPE and the KV cache write: the CPU paths against their references."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.kv_cache_write import cpu as kv_cpu
from kernels.kv_cache_write import reference as kv_reference
from kernels.rms_norm import cpu as norm_cpu
from kernels.rms_norm import reference as norm_reference
from kernels.rope import cpu as rope_cpu
from kernels.rope import reference as rope_reference
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.silu_and_mul import cpu as silu_cpu
from kernels.silu_and_mul import reference as silu_reference
from tests.kernels.arrays import DTYPES, assert_close, random_tensor, to_float32


@dataclass(frozen=True)
class Scaling:
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (16, 576), (3, 5, 64), (2, 1)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, scale: float) -> None:
    rng = np.random.default_rng(2)
    x = (random_tensor(rng, shape, dtype) * scale).to(dtype)
    weight = random_tensor(rng, shape[-1:], torch.float32)
    expected = norm_reference.rms_norm(to_float32(x), to_float32(weight), 1e-5)
    assert_close(norm_cpu.rms_norm(x, weight, 1e-5, dtype), expected, dtype)
    assert_close(norm_cpu.rms_norm(x.float(), weight, 1e-5, dtype), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm_updates_the_residual_in_place(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    x, residual = random_tensor(rng, (7, 48), dtype), random_tensor(rng, (7, 48), torch.float32)
    weight = random_tensor(rng, (48,), torch.float32)
    expected, total = norm_reference.add_rms_norm(to_float32(x), to_float32(residual), to_float32(weight), 1e-6)
    normed, returned = norm_cpu.add_rms_norm(x, residual, weight, 1e-6)
    assert returned is residual
    assert_close(residual, total, torch.float32)
    assert_close(normed, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 33])
def test_silu_and_mul(num_tokens: int, dtype: torch.dtype) -> None:
    gate_up = random_tensor(np.random.default_rng(4), (num_tokens, 96), dtype) * 5
    assert_close(silu_cpu.silu_and_mul(gate_up), silu_reference.silu_and_mul(to_float32(gate_up)), dtype)


def test_silu_and_mul_of_large_negative_gates_is_zero() -> None:
    gate_up = torch.tensor([[-1e4, -200.0, 3.0, 4.0]])
    assert_close(silu_cpu.silu_and_mul(gate_up), silu_reference.silu_and_mul(to_float32(gate_up)), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scaling", [None, Scaling()], ids=["plain", "llama3"])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_rope(head_dim: int, scaling: Scaling | None, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    table = cos_sin_table(inverse_frequencies(head_dim, 10000.0, scaling), 600)
    positions = rng.integers(0, 600, 20)
    x = random_tensor(rng, (20, 5, head_dim), dtype)
    expected = rope_reference.rope(to_float32(x), positions, table)
    assert_close(rope_cpu.rope(x, torch.from_numpy(table)[torch.from_numpy(positions)]), expected, dtype)


def test_rope_keeps_lengths_and_depends_on_distance_only() -> None:
    rng = np.random.default_rng(6)
    table = torch.from_numpy(cos_sin_table(inverse_frequencies(64, 10000.0), 100))
    query, key = random_tensor(rng, (1, 1, 64), torch.float32), random_tensor(rng, (1, 1, 64), torch.float32)
    products = [float((rope_cpu.rope(query, table[[p + 7]]) * rope_cpu.rope(key, table[[p]])).sum()) for p in (0, 50)]
    assert products[0] == pytest.approx(products[1], abs=1e-4)
    torch.testing.assert_close(rope_cpu.rope(query, table[[33]]).norm(), query.norm())


def test_llama3_scaling_slows_slow_pairs_and_keeps_fast_ones() -> None:
    plain, scaled = inverse_frequencies(128, 500000.0), inverse_frequencies(128, 500000.0, Scaling())
    wavelengths = 2 * np.pi / plain
    np.testing.assert_array_equal(scaled[wavelengths < 8192 / 4], plain[wavelengths < 8192 / 4])
    np.testing.assert_allclose(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
    between = (wavelengths > 8192 / 4) & (wavelengths < 8192)
    assert between.any()
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_kv_cache_write(data: st.DataObject) -> None:
    num_blocks, block_size = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 4, 16]))
    slots = data.draw(st.lists(st.integers(0, num_blocks * block_size - 1), unique=True, max_size=12))
    slots = data.draw(st.permutations(slots + [-1] * data.draw(st.integers(0, 4))))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(7)
    key, value = (random_tensor(rng, (len(slots), 2, 8), dtype) for _ in "kv")
    key_cache, value_cache = (random_tensor(rng, (num_blocks, block_size, 2, 8), dtype) for _ in "kv")
    expected = to_float32(key_cache).copy(), to_float32(value_cache).copy()
    slot_mapping = np.array(slots, dtype=np.int64)
    kv_reference.kv_cache_write(to_float32(key), to_float32(value), *expected, slot_mapping)
    kv_cpu.kv_cache_write(key, value, key_cache, value_cache, torch.from_numpy(slot_mapping))
    np.testing.assert_array_equal(to_float32(key_cache), expected[0])
    np.testing.assert_array_equal(to_float32(value_cache), expected[1])


def test_kv_cache_write_refuses_a_slot_beyond_the_cache() -> None:
    cache = torch.zeros(2, 4, 1, 8)
    with pytest.raises(IndexError):
        kv_cpu.kv_cache_write(torch.ones(1, 1, 8), torch.ones(1, 1, 8), cache, cache.clone(), torch.tensor([8]))
