"""What RMSNorm, SiLU gate, RoPE and the KV cache write must do, wherever they are loaded.

The checks with shapes are the tests'; those without are for sanitizers and planted bugs (see emulator/sanitized.py).
"""

import numpy as np
import torch

from kernels.cuda.module import LoadKernels
from kernels.kv_cache_write import reference as kv_reference
from kernels.kv_cache_write.cuda import KvCacheWrite
from kernels.rms_norm import reference as norm_reference
from kernels.rms_norm.cuda import RmsNorm, RmsNormHeads
from kernels.rope import reference as rope_reference
from kernels.rope.cuda import Rope
from kernels.rope.frequencies import cos_sin_table, inverse_frequencies
from kernels.silu_and_mul import reference as silu_reference
from kernels.silu_and_mul.cuda import SiluAndMul
from tests.kernels.arrays import assert_close, assert_rounded_once, random_tensor, to_float32, zeros_without_memory

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn

# ---- of any shape ---------------------------------------------------------------------------------------------------


def check_rms_norm(load: LoadKernels, dtype: torch.dtype, shape: tuple[int, int], adds: bool, size: float = 1) -> None:
    """size: of the values; where their squares are small, eps counts."""
    rng = np.random.default_rng(1)
    residual, weight = random_tensor(rng, shape, torch.float32) * size, random_tensor(rng, shape[1:], torch.float32)
    x = random_tensor(rng, shape, dtype) * size if adds else None
    total = residual.numpy() + (to_float32(x) if x is not None else 0)
    out = torch.full(shape, float("nan"), dtype=dtype)
    RmsNorm(load, dtype, shape[1])(out, residual, weight, 1e-5, x)
    assert_close(residual, total, torch.float32)
    assert_rounded_once(out, norm_reference.rms_norm(total, weight.numpy(), 1e-5), dtype)


def check_rms_norm_heads(load: LoadKernels, dtype: torch.dtype, head_dim: int) -> None:
    """Some heads in place, the others of a token untouched."""
    rng = np.random.default_rng(6)
    heads, weight = random_tensor(rng, (3, 9, head_dim), dtype), random_tensor(rng, (head_dim,), torch.float32)
    heads[0] *= 1e-2  # where eps counts
    before = heads.clone()
    RmsNormHeads(load, dtype, head_dim)(heads[:, 2:7], weight, 1e-5)
    expected = norm_reference.rms_norm(to_float32(before[:, 2:7]), weight.numpy(), 1e-5)
    assert_rounded_once(heads[:, 2:7], expected, dtype)
    assert torch.equal(heads[:, :2], before[:, :2]) and torch.equal(heads[:, 7:], before[:, 7:])


def check_silu_and_mul(load: LoadKernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Rows of gates and what they gate."""
    gate_up = random_tensor(np.random.default_rng(2), (shape[0], 2 * shape[1]), dtype) * 5
    out = torch.full(shape, float("nan"), dtype=dtype)
    SiluAndMul(load, dtype, shape[1])(out, gate_up)
    assert_rounded_once(out, silu_reference.silu_and_mul(to_float32(gate_up)), dtype)


def check_rope(load: LoadKernels, dtype: torch.dtype, head_dim: int, num_heads: int = 5) -> None:
    """The first heads of each token, the others untouched."""
    rng = np.random.default_rng(3)
    num_untouched = 2
    heads = random_tensor(rng, (4, (num_heads + num_untouched) * head_dim), dtype)
    before = heads.clone()
    table = cos_sin_table(inverse_frequencies(head_dim, 10000.0, None), 100)
    positions = torch.tensor([0, 99, 7, 7])
    Rope(load, dtype, num_heads, head_dim)(heads, torch.from_numpy(table), positions)
    turned, rest = heads.split([num_heads * head_dim, num_untouched * head_dim], dim=1)
    old = to_float32(before[:, : num_heads * head_dim]).reshape(4, num_heads, head_dim)
    expected = rope_reference.rope(old, positions.numpy(), table)
    assert_rounded_once(turned.reshape(4, num_heads, head_dim), expected, dtype)
    assert torch.equal(rest, before[:, num_heads * head_dim :])


def check_kv_cache_write(load: LoadKernels, dtype: torch.dtype, block_size: int, is_head_major: bool) -> None:
    """Every bit of the cache as the reference has it, where nothing was written too."""
    rng = np.random.default_rng(4)
    num_heads, head_dim, num_blocks = 3, 80, 5
    key_cache, value_cache = new_caches((num_blocks, block_size, num_heads, head_dim), dtype, is_head_major)
    qkv = random_tensor(rng, (6, 4 * num_heads, head_dim), dtype)
    keys, values = qkv[:, 2 * num_heads : 3 * num_heads], qkv[:, 3 * num_heads :]
    slots = torch.tensor([0, block_size * num_blocks - 1, -1, block_size, 3, block_size + 1])
    expected = to_float32(key_cache), to_float32(value_cache)
    kv_reference.kv_cache_write(to_float32(keys), to_float32(values), *expected, slots.numpy())
    KvCacheWrite(load, dtype, dtype, head_dim)(key_cache, value_cache, keys, values, slots)
    assert np.array_equal(to_float32(key_cache), expected[0], equal_nan=True)
    assert np.array_equal(to_float32(value_cache), expected[1], equal_nan=True)


def check_fp8_cache(load: LoadKernels, dtype: torch.dtype) -> None:
    """What a head's scale divides."""
    rng = np.random.default_rng(5)
    num_heads, head_dim = 2, 64
    shape = (2, 16, num_heads, head_dim)
    key_cache, value_cache = new_caches(shape, FP8, False)
    keys, values = (random_tensor(rng, (3, num_heads, head_dim), dtype) * 100 for _ in range(2))
    key_scales, value_scales = torch.tensor([0.5, 2.0]), torch.tensor([1.0, 4.0])
    slots = torch.tensor([5, 16, 31])
    write = KvCacheWrite(load, dtype, FP8, head_dim)
    write(key_cache, value_cache, keys, values, slots, key_scales, value_scales)
    for cache, tokens, scales in ((key_cache, keys, key_scales), (value_cache, values, value_scales)):
        wanted = (tokens.float() / scales[:, None]).clamp(-448, 448).to(FP8)
        assert torch.equal(cache.flatten(0, 1)[slots].view(torch.uint8), wanted.view(torch.uint8))


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


# ---- of one shape, for sanitizers and planted bugs ------------------------------------------------------------------


def rms_norm(load: LoadKernels) -> None:
    """More than a block's threads take at once, and an end that some of them have."""
    check_rms_norm(load, BF16, (2, 4096 + 8), adds=True)
    check_rms_norm(load, BF16, (2, 576), adds=False, size=1e-3)


def rms_norm_heads(load: LoadKernels) -> None:
    """Of which a block's last warps have none, and a warp's last lanes no values."""
    check_rms_norm_heads(load, BF16, 80)


def silu_and_mul(load: LoadKernels) -> None:
    """Two blocks a row, the second with an end."""
    check_silu_and_mul(load, BF16, (2, 2056))


def rope(load: LoadKernels) -> None:
    """More heads than a block's threads turn at once."""
    check_rope(load, BF16, 96, num_heads=23)


def kv_cache_write(load: LoadKernels) -> None:
    """In both layouts."""
    check_kv_cache_write(load, BF16, 16, is_head_major=False)
    check_kv_cache_write(load, BF16, 16, is_head_major=True)


def fp8_cache(load: LoadKernels) -> None:
    """Narrower than what is written."""
    check_fp8_cache(load, BF16)


# Tensors of more than 2^32 numbers, of which a few are written: the others need no memory.


def large_kv_cache(load: LoadKernels) -> None:
    """The last block of a cache, by tokens that lie far apart."""
    num_heads, head_dim, block_size = 2, 64, 16
    num_blocks = 2**32 // (block_size * num_heads * head_dim) + 2
    caches = [zeros_without_memory((num_blocks, block_size, num_heads, head_dim), BF16) for _ in range(2)]
    rng = np.random.default_rng(7)
    keys, values = (far_apart(random_tensor(rng, (2, num_heads, head_dim), BF16)) for _ in range(2))
    slots = torch.tensor([num_blocks * block_size - 1, 5])
    KvCacheWrite(load, BF16, BF16, head_dim)(*caches, keys, values, slots)
    for cache, written in zip(caches, (keys, values), strict=True):
        assert torch.equal(cache.view(-1, num_heads, head_dim)[slots], written)


def large_rope(load: LoadKernels) -> None:
    """Heads of tokens that lie far apart."""
    head_dim, num_heads = 64, 2
    before = random_tensor(np.random.default_rng(8), (2, num_heads, head_dim), BF16)
    heads = far_apart(before)
    table = cos_sin_table(inverse_frequencies(head_dim, 10000.0, None), 10)
    Rope(load, BF16, num_heads, head_dim)(heads.flatten(1), torch.from_numpy(table), torch.tensor([3, 9]))
    assert_rounded_once(heads, rope_reference.rope(to_float32(before), np.array([3, 9]), table), BF16)


def large_rms_norm_heads(load: LoadKernels) -> None:
    """Heads of tokens that lie far apart."""
    before, weight = random_tensor(np.random.default_rng(9), (2, 2, 64), BF16), torch.ones(64)
    heads = far_apart(before)
    RmsNormHeads(load, BF16, 64)(heads, weight, 1e-5)
    assert_rounded_once(heads, norm_reference.rms_norm(to_float32(before), weight.numpy(), 1e-5), BF16)


def far_apart(tokens: torch.Tensor) -> torch.Tensor:
    """A copy of two tokens [2, ...] with more than 2^32 numbers between them."""
    memory = zeros_without_memory((2, 2**32 + 64), tokens.dtype)
    spread = memory[:, : tokens[0].numel()].view(tokens.shape)
    spread.copy_(tokens)
    return spread


CHECKS = (rms_norm, rms_norm_heads, silu_and_mul, rope, kv_cache_write, fp8_cache)
LARGE = (large_kv_cache, large_rope, large_rms_norm_heads)
