"""Random inputs for kernel tests, and comparison of a torch result with a NumPy reference."""

import math
import mmap
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paged_attention import reference

MAP_NORESERVE = 0x4000  # of Linux

DTYPES = [torch.float32, torch.bfloat16]

# bfloat16 has 8 bits of mantissa: rounding the inputs' products once costs up to 2^-9 relative. float16 has 11.
TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 1e-2), torch.float16: (2e-3, 1e-3)}


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Normally distributed values that dtype can hold exactly."""
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def to_float32(tensor: Tensor) -> NDArray[np.float32]:
    """The same values for the reference."""
    return tensor.float().numpy()


def assert_close(actual: Tensor, expected: NDArray[np.float32], dtype: torch.dtype) -> None:
    """Equal within the rounding of dtype; and actual has that dtype."""
    assert actual.dtype == dtype
    relative, absolute = TOLERANCES[dtype]
    np.testing.assert_allclose(to_float32(actual), expected, rtol=relative, atol=absolute)


def assert_rounded_once(actual: Tensor, expected: NDArray[np.float32], dtype: torch.dtype) -> None:
    """The nearest numbers of dtype, but for float32 sums in another order; and actual has that dtype."""
    assert actual.dtype == dtype
    half_unit = torch.finfo(dtype).eps / 2
    np.testing.assert_allclose(to_float32(actual), expected, rtol=half_unit * 1.02, atol=1e-6)


def zeros_without_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Of any size: a page of it needs memory when something is written there."""
    numbers = math.prod(shape)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, numbers * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype, count=numbers).view(shape)


@dataclass
class PagedContext:
    """Sequences in a paged cache: what paged_attention takes besides the query.

    Every slot that no sequence owns, and every one beyond a sequence's context, holds NaN.
    """

    key_cache: Tensor
    value_cache: Tensor
    cu_seqlens_q: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]


def make_paged_context(
    rng: np.random.Generator,
    lengths: list[tuple[int, int]],
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> PagedContext:
    """lengths: (queries, context) of each sequence. Blocks are dealt out in random order."""
    needed = [-(-context // block_size) for _, context in lengths]
    num_blocks = sum(needed) + 3
    free = rng.permutation(num_blocks).astype(np.int32)
    tables = np.zeros((len(lengths), max(needed)), dtype=np.int32)
    caches = [torch.full((num_blocks, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype) for _ in "kv"]
    taken = 0
    for sequence, (_, context) in enumerate(lengths):
        blocks = free[taken : taken + needed[sequence]]
        taken += needed[sequence]
        tables[sequence, : len(blocks)] = blocks
        for position in range(context):
            block, offset = int(blocks[position // block_size]), position % block_size
            for cache in caches:
                cache[block, offset] = random_tensor(rng, (num_kv_heads, head_dim), dtype)
    return PagedContext(
        key_cache=caches[0],
        value_cache=caches[1],
        cu_seqlens_q=np.concatenate(([0], np.cumsum([queries for queries, _ in lengths]))).astype(np.int32),
        context_lens=np.array([context for _, context in lengths], dtype=np.int32),
        block_tables=tables,
    )


def expected_attention(context: PagedContext, query: Tensor, sliding_window: int | None = None) -> NDArray[np.float32]:
    """The reference's float32 [T, H, D] for queries [T, H, D], scores scaled by 1 / sqrt(D)."""
    return reference.paged_attention(
        to_float32(query),
        to_float32(context.key_cache),
        to_float32(context.value_cache),
        context.cu_seqlens_q,
        context.context_lens,
        context.block_tables,
        query.shape[2] ** -0.5,
        sliding_window=sliding_window,
    )
