"""Cases for `python -m kernels check`."""

import torch

from kernels.check.case import Case, Size, Trial, mismatch
from kernels.cuda.module import LoadKernels
from kernels.kv_blocks import reference
from kernels.kv_blocks.cuda import KvBlocks
from kernels.kv_blocks.swap import SwapSpace, bytes_of_block


def cases(size: Size) -> list[Case]:
    """Caches [planes, blocks, tokens, heads, numbers], of bytes as good as of numbers."""
    shape, num_pairs = ((3, 8, 16, 2, 160), 3) if size is Size.SMALL else ((64, 300, 16, 8, 256), 100)
    return [_copy(shape, num_pairs), _swap(shape, num_pairs)]


def _random_cache(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)


def _copy(shape: tuple[int, ...], num_pairs: int) -> Case:
    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        cache = _random_cache(shape, device)
        sources, destinations = list(range(num_pairs)), list(range(shape[1] - 1, shape[1] - 1 - num_pairs, -1))
        expected = cache.cpu().numpy().copy()
        reference.copy_blocks(expected, sources, destinations)
        operation = KvBlocks(load, cache)
        ids = [torch.tensor(blocks, dtype=torch.int32, device=device) for blocks in (sources, destinations)]
        return Trial(
            launch=lambda: operation.copy(*ids),
            compare=lambda: mismatch(cache, expected),
            num_bytes=2 * num_pairs * bytes_of_block(cache),
        )

    return Case("kv_blocks", f"{num_pairs} copied of {list(shape)}", prepare)


def _swap(shape: tuple[int, ...], num_blocks: int) -> Case:
    """Out and in again, to other blocks. The bus to the host sets its pace, not the device's memory."""

    def prepare(load: LoadKernels, device: torch.device) -> Trial:
        cache = _random_cache(shape, device)
        space = SwapSpace(load, cache, num_blocks)
        slots, targets = list(range(num_blocks)), list(range(num_blocks, 2 * num_blocks))
        before = cache.cpu().numpy().copy()
        expected = before.copy()
        reference.scatter_blocks(expected, reference.gather_blocks(before, slots), targets)

        def launch() -> None:
            space.swap_out(slots, slots)
            space.swap_in(slots, targets).wait()

        return Trial(launch, lambda: mismatch(cache, expected), 2 * num_blocks * bytes_of_block(cache))

    return Case("kv_blocks", f"{num_blocks} swapped out and in of {list(shape)}", prepare)
