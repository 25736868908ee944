"""The packed KV cache of the C++ kernels, and its way from and to the plain one.

packed_cache.h draws the layout and says what it is for. Plain caches are [N, B, K, D]: blocks, slots, heads, head size.
"""

import torch
from torch import Tensor

TILE_TOKENS = 16
MAX_HEAD_DIM = 256


def check_packable(block_size: int, head_dim: int) -> None:
    """Raises ValueError for a cache that cannot be packed."""
    if block_size % TILE_TOKENS or block_size <= 0:
        raise ValueError(f"block size {block_size} is not a multiple of {TILE_TOKENS}")
    if head_dim % 16 or not 0 < head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"head size {head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}")


def pack_keys(keys: Tensor) -> Tensor:
    """[N, B, K, D] to a new tensor [N, K, B / 16, D / 2, 16, 2]."""
    num_blocks, block_size, num_heads, head_dim = keys.shape
    check_packable(block_size, head_dim)
    tiles = keys.view(num_blocks, block_size // TILE_TOKENS, TILE_TOKENS, num_heads, head_dim // 2, 2)
    return tiles.permute(0, 3, 1, 4, 2, 5).contiguous()


def unpack_keys(packed: Tensor) -> Tensor:
    """[N, K, B / 16, D / 2, 16, 2] to a new tensor [N, B, K, D]."""
    num_blocks, num_heads, num_tiles, num_pairs = packed.shape[:4]
    keys = packed.permute(0, 2, 4, 1, 3, 5)
    return keys.reshape(num_blocks, num_tiles * TILE_TOKENS, num_heads, 2 * num_pairs)


def pack_values(values: Tensor) -> Tensor:
    """[N, B, K, D] to a new tensor [N, K, B / 2, D, 2]."""
    num_blocks, block_size, num_heads, head_dim = values.shape
    check_packable(block_size, head_dim)
    pairs = values.view(num_blocks, block_size // 2, 2, num_heads, head_dim)
    return pairs.permute(0, 3, 1, 4, 2).contiguous()


def unpack_values(packed: Tensor) -> Tensor:
    """[N, K, B / 2, D, 2] to a new tensor [N, B, K, D]."""
    num_blocks, num_heads, num_pairs, head_dim = packed.shape[:4]
    return torch.reshape(packed.permute(0, 2, 4, 1, 3), (num_blocks, 2 * num_pairs, num_heads, head_dim))
