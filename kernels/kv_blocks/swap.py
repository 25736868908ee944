"""Blocks of the KV cache swapped to the host's memory and back, beside the steps.

A block goes out in two hops: a kernel gathers its planes, which lie far apart, into staging memory on the device, and
one copy takes it from there to the host. A copy for each plane would be some 60 of 32 KiB, and a bus likes them long.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels
from kernels.kv_blocks.cuda import KvBlocks

_STAGING_BYTES = 32 << 20
# torch rounds each piece of pinned memory up to a power of two: a swap space of 5 GiB in one piece would take 8.
_SLAB_BYTES = 64 << 20


class Transfer(Protocol):
    """A swap under way: torch.cuda.Event, or what was done at once."""

    def query(self) -> bool:
        """Whether it is over."""

    def wait(self) -> None:
        """Whatever is launched from now on begins after it; the caller goes on."""


class Line(Protocol):
    """Where copies queue up: a stream beside that of the steps."""

    def beside(self) -> AbstractContextManager[None]:
        """What is launched inside begins after what was launched before, and delays nothing that is launched later."""

    def mark(self) -> Transfer:
        """All that was launched inside so far."""


_Pieces = list[tuple[Tensor, Tensor]]  # of staging, each with where it is kept


class SwapSpace:
    """Slots in the host's memory, each for one block. cache: [P, N, ...], see KvBlocks."""

    def __init__(
        self,
        load: LoadKernels,
        cache: Tensor,
        num_slots: int,
        staging_bytes: int = _STAGING_BYTES,
        slab_bytes: int = _SLAB_BYTES,
        line: Line | None = None,
    ) -> None:
        """staging_bytes: on the device; slab_bytes: of a piece of pinned memory; of each at least one block's."""
        self.num_slots = num_slots
        self._num_blocks = cache.shape[1]
        self._blocks = KvBlocks(load, cache)
        shape, block_bytes = (len(cache), *cache.shape[2:]), bytes_of_block(cache)
        self._is_pinned = cache.is_cuda
        self._staging = cache.new_empty((max(1, staging_bytes // block_bytes), *shape))
        self._ids = torch.empty(len(self._staging), dtype=torch.int32, device=cache.device)
        self._slab_slots = max(1, slab_bytes // block_bytes)
        self._slabs = [
            torch.empty((slots, *shape), dtype=cache.dtype, pin_memory=self._is_pinned)
            for slots in _slab_sizes(num_slots, self._slab_slots)
        ]
        self._line = line or (_Stream(cache.device) if cache.is_cuda else _AtOnce())

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> Transfer:
        """Block blocks[i] into slot slots[i]; the block may be written once this is over, or after its wait."""

        def move(ids: Tensor, pieces: _Pieces) -> None:
            self._blocks.gather(self._staging, ids)
            for staged, kept in pieces:
                kept.copy_(staged, non_blocking=True)

        return self._swap(blocks, slots, move)

    def swap_in(self, slots: Sequence[int], blocks: Sequence[int]) -> Transfer:
        """The opposite; the block may be read once this is over, or after its wait."""

        def move(ids: Tensor, pieces: _Pieces) -> None:
            for staged, kept in pieces:
                staged.copy_(kept, non_blocking=True)
            self._blocks.scatter(self._staging, ids)

        return self._swap(blocks, slots, move)

    def _swap(self, blocks: Sequence[int], slots: Sequence[int], move: Callable[[Tensor, _Pieces], None]) -> Transfer:
        if len(blocks) != len(slots):
            raise ValueError(f"{len(blocks)} blocks for {len(slots)} slots")
        _check(blocks, self._num_blocks, "block")
        _check(slots, self.num_slots, "slot")
        step = len(self._staging)
        with self._line.beside():
            for first in range(0, len(blocks), step):  # staging is free again: what is on one line is done in turn
                move(self._ids_of(blocks[first : first + step]), self._pieces(slots[first : first + step]))
        return self._line.mark()

    def _ids_of(self, blocks: Sequence[int]) -> Tensor:
        ids = torch.tensor(blocks, dtype=torch.int32, pin_memory=self._is_pinned)
        return self._ids[: len(blocks)].copy_(ids, non_blocking=True)

    def _pieces(self, slots: Sequence[int]) -> _Pieces:
        pieces = []
        for index, slot, length in runs_of(slots, self._slab_slots):
            slab, offset = self._slabs[slot // self._slab_slots], slot % self._slab_slots
            pieces.append((self._staging[index : index + length], slab[offset : offset + length]))
        return pieces


class _Stream:
    """A Line on a device."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Transfer:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


class _AtOnce:
    """A Line, and a Transfer, where everything is done when the call returns: in the host's memory."""

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self) -> Transfer:
        return self

    def query(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def bytes_of_block(cache: Tensor) -> int:
    """In all planes together: what a slot takes."""
    return len(cache) * cache[0, 0].numel() * cache.element_size()


def runs_of(slots: Sequence[int], slab_slots: int) -> list[tuple[int, int, int]]:
    """Slots that follow each other in a slab, as (index of the first, its slot, how many): one copy each."""
    runs: list[tuple[int, int, int]] = []
    for index, slot in enumerate(slots):
        if runs and slot == runs[-1][1] + runs[-1][2] and slot % slab_slots:
            first, first_slot, length = runs.pop()
            runs.append((first, first_slot, length + 1))
        else:
            runs.append((index, slot, 1))
    return runs


def _slab_sizes(num_slots: int, slab_slots: int) -> list[int]:
    return [min(slab_slots, num_slots - first) for first in range(0, num_slots, slab_slots)]


def _check(ids: Sequence[int], limit: int, what: str) -> None:
    if len(set(ids)) < len(ids):
        raise ValueError(f"a {what} twice in {list(ids)}")
    for number in ids:
        if not 0 <= number < limit:
            raise ValueError(f"{what} {number} of {limit}")
