"""Blocks of the KV cache from place to place on a device."""

from pathlib import Path

import numpy as np
from torch import Tensor

from kernels.cuda.module import LoadKernels

SOURCE = Path(__file__).with_name("kernel.cu")
INSTANCE = "tokenbus::copy_blocks"
_THREADS = 256
_STEP_BYTES = 16


class KvBlocks:
    """Of a cache [P, N, ...] of any type: P planes of N blocks, a block's part of a plane in one piece.

    Block ids are int32 [n] on the device, each below N. Raises ValueError for a cache that the kernel cannot copy.
    """

    def __init__(self, load: LoadKernels, cache: Tensor) -> None:
        plane_bytes, block_bytes = (stride * cache.element_size() for stride in cache.stride()[:2])
        bytes_of_block = cache[0, 0].numel() * cache.element_size()
        if not cache[0, 0].is_contiguous():
            raise ValueError("a block of the cache does not lie in one piece")
        if any(number % _STEP_BYTES for number in (cache.data_ptr(), plane_bytes, block_bytes, bytes_of_block)):
            raise ValueError(f"blocks of {bytes_of_block} bytes, {block_bytes} apart: no multiples of {_STEP_BYTES}")
        self._cache = cache
        self._num_steps = bytes_of_block // _STEP_BYTES
        self._strides = (plane_bytes, block_bytes)
        self._strides_in_a_row = (bytes_of_block, len(cache) * bytes_of_block)
        self._module = load(SOURCE, [INSTANCE])

    def copy(self, sources: Tensor, destinations: Tensor) -> None:
        """Block sources[i] into block destinations[i]. No block may be written twice, nor read and written."""
        self._launch(len(sources), (self._cache, destinations, self._strides), (self._cache, sources, self._strides))

    def gather(self, row: Tensor, blocks: Tensor) -> None:
        """row: contiguous [at least n, P, ...] of the cache's type."""
        self._launch(len(blocks), (row, None, self._strides_in_a_row), (self._cache, blocks, self._strides))

    def scatter(self, row: Tensor, blocks: Tensor) -> None:
        """The opposite of gather; no block may be written twice."""
        self._launch(len(blocks), (self._cache, blocks, self._strides), (row, None, self._strides_in_a_row))

    def _launch(self, num_pairs: int, to: "_Place", source: "_Place") -> None:
        if not num_pairs:
            return
        arguments = (
            *(to[0], source[0], to[1], source[1]),
            np.int32(self._num_steps),
            *(np.int64(stride) for stride in (*to[2], *source[2])),
        )
        self._module.launch(INSTANCE, (num_pairs, len(self._cache), 1), (_THREADS, 1, 1), arguments)


# Memory, block ids or None, strides from plane to plane and block to block in bytes.
_Place = tuple[Tensor, Tensor | None, tuple[int, int]]
