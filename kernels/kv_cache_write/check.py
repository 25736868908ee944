"""Cases for `python -m kernels check`."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.check.case import Case, Size, Trial, mismatch, random_tensor, short_name
from kernels.cuda.module import LoadKernels
from kernels.kv_cache_write import reference
from kernels.kv_cache_write.cuda import KvCacheWrite

_BLOCK_SIZE = 16
_FP8 = torch.float8_e4m3fn
_FP8_MAX = 448


def cases(size: Size) -> list[Case]:
    """Slots all over the cache; an fp8 cache with a scale for each head."""
    shapes = [(5, 2, 80)] if size is Size.SMALL else [(64, 8, 128), (8192, 8, 128)]
    kinds = [(dtype, kept) for dtype in (torch.bfloat16, torch.float16) for kept in (dtype, _FP8)]
    return [_case(dtype, kept, *shape) for dtype, kept in kinds for shape in shapes]


def _case(dtype: torch.dtype, kept: torch.dtype, num_tokens: int, num_heads: int, head_dim: int) -> Case:
    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        shape = (2 * num_tokens // _BLOCK_SIZE + 1, _BLOCK_SIZE, num_heads, head_dim)
        keys, values = (random_tensor(seed, (num_tokens, num_heads, head_dim), dtype, device) for seed in (1, 2))
        caches = [torch.zeros(shape, dtype=kept, device=device) for _ in "kv"]
        slots = torch.randperm(shape[0] * _BLOCK_SIZE, generator=torch.Generator().manual_seed(3))[:num_tokens]
        scales = [torch.linspace(*ends, num_heads, device=device) for ends in ((0.5, 2.0), (3.0, 1.0))]
        given = scales if kept == _FP8 else [None, None]
        expected = [_bytes(cache) for cache in caches]
        new_keys, new_values = (
            _bytes(_as_kept(tokens, kept, scale)) for tokens, scale in zip((keys, values), given, strict=True)
        )
        reference.kv_cache_write(new_keys, new_values, expected[0], expected[1], slots.numpy())
        operation, on_device = KvCacheWrite(load, dtype, kept, head_dim), slots.to(device)
        return Trial(
            launch=lambda: operation(caches[0], caches[1], keys, values, on_device, *given),
            compare=lambda: max(mismatch(*pair) for pair in zip(caches, expected, strict=True)),
            num_bytes=2 * keys.numel() * (dtype.itemsize + kept.itemsize),
        )

    name = f"{short_name(dtype)} into {short_name(kept)} {[num_tokens, num_heads, head_dim]}"
    return Case("kv_cache_write", name, prepare)


def _as_kept(tokens: Tensor, kept: torch.dtype, scales: Tensor | None) -> Tensor:
    if scales is None:
        return tokens
    return (tokens.float() * (1 / scales)[:, None]).clamp(-_FP8_MAX, _FP8_MAX).to(kept)


def _bytes(tensor: Tensor) -> NDArray[Any]:
    """The reference moves them as they are."""
    found: NDArray[Any] = tensor.contiguous().view(torch.uint8).cpu().numpy().copy()
    return found
