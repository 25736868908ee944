"""Blocks copied within the cache, and swapped to the host and back: in the emulator, against the reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.kv_blocks import reference, swap
from kernels.kv_blocks.cuda import KvBlocks
from kernels.kv_blocks.swap import SwapSpace, bytes_of_block, runs_of
from tests.kernels.emulator.module import SCHEDULES, EmulatedModule, Schedule, load_emulated

DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32)
NUM_PLANES, NUM_BLOCKS = 3, 7


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    found: Schedule = request.param
    return found


def new_cache(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, apart: int = 0) -> torch.Tensor:
    """[*shape] of random bits; apart: elements between a block and the next."""
    block = int(np.prod(shape[2:]))
    size = dtype.itemsize
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, (*shape[:2], (block + apart) * size), dtype=np.uint8)
    return torch.from_numpy(memory).view(dtype)[:, :, :block].unflatten(2, shape[2:])


def bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.contiguous().view(torch.uint8).numpy().copy()


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


# ---- the kernel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [(16, 1, 64), (64, 2, 80), (16,), (16, 2, 80)], ids=str)
@pytest.mark.parametrize("apart", [0, 32])
def test_blocks_are_copied_in_every_plane(
    schedule: Schedule, dtype: torch.dtype, block: tuple[int, ...], apart: int
) -> None:
    cache = new_cache((NUM_PLANES, NUM_BLOCKS, *block), dtype, apart)
    expected = bits(cache)
    reference.copy_blocks(expected, [0, 6, 0], [5, 1, 2])
    KvBlocks(load_emulated(schedule), cache).copy(ids(0, 6, 0), ids(5, 1, 2))
    assert np.array_equal(bits(cache), expected)


@pytest.mark.parametrize("apart", [0, 32])
def test_blocks_are_gathered_in_a_row_and_scattered_again(schedule: Schedule, apart: int) -> None:
    block = (16, 2, 80)
    cache = new_cache((NUM_PLANES, NUM_BLOCKS, *block), apart=apart)
    before = bits(cache)
    blocks = KvBlocks(load_emulated(schedule), cache)
    row = new_cache((4, NUM_PLANES, *block))
    rest = bits(row)[3]
    blocks.gather(row, ids(6, 0, 3))
    assert np.array_equal(bits(row)[:3], reference.gather_blocks(before, [6, 0, 3]))
    assert np.array_equal(bits(row)[3], rest)
    assert np.array_equal(bits(cache), before)
    blocks.scatter(row, ids(1, 6, 2))
    reference.scatter_blocks(before, bits(row)[:3], [1, 6, 2])
    assert np.array_equal(bits(cache), before)


def test_offsets_beyond_32_bits(schedule: Schedule) -> None:
    """Planes 5 GiB apart, blocks 2.5 GiB apart; the system gives memory for what is touched alone."""
    memory = torch.empty(8 << 30, dtype=torch.uint8)
    cache = memory.as_strided((2, 2, 16, 16), (5 << 30, 5 << 29, 16, 1))
    cache.copy_(new_cache((2, 2, 16, 16), torch.uint8))
    expected = bits(cache)
    reference.copy_blocks(expected, [0], [1])
    blocks = KvBlocks(load_emulated(schedule), cache)
    blocks.copy(ids(0), ids(1))
    assert np.array_equal(bits(cache), expected)
    row = torch.zeros(1, 2, 16, 16, dtype=torch.uint8)
    blocks.gather(row, ids(1))
    assert np.array_equal(bits(row), reference.gather_blocks(expected, [1]))


def test_what_is_copied_is_read_once() -> None:
    cache = new_cache((NUM_PLANES, NUM_BLOCKS, 64, 2, 80))
    modules: list[EmulatedModule] = []

    def load(source: Any, instances: Any) -> EmulatedModule:
        modules.append(EmulatedModule(source, instances))
        return modules[-1]

    KvBlocks(load, cache).copy(ids(0, 1), ids(2, 3))
    assert modules[0].counts.loaded_bytes == 2 * bytes_of_block(cache)


def test_no_blocks_launch_nothing() -> None:
    blocks = KvBlocks(load_emulated(), new_cache((NUM_PLANES, NUM_BLOCKS, 16)))
    blocks.copy(ids(), ids())


@pytest.mark.parametrize(
    "cache",
    [
        new_cache((2, 3, 5, 7)),  # 70 bytes
        new_cache((2, 3, 16), apart=3),
        new_cache((2, 3, 4, 8)).transpose(2, 3),
        new_cache((2, 3, 17))[:, :, 1:],
    ],
    ids=["odd", "odd apart", "not in one piece", "odd address"],
)
def test_a_cache_that_the_kernel_cannot_copy_is_refused(cache: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="block"):
        KvBlocks(load_emulated(), cache)


@pytest.mark.parametrize(("sources", "destinations"), [([0, 1], [2, 2]), ([0, 1], [1, 2])])
def test_pairs_whose_order_would_matter_have_no_reference(sources: list[int], destinations: list[int]) -> None:
    with pytest.raises(ValueError, match="twice"):
        reference.copy_blocks(np.zeros((1, 3, 4)), sources, destinations)


# ---- swapping -------------------------------------------------------------------------------------------------------


def new_space(cache: torch.Tensor, num_slots: int = 9, **options: Any) -> SwapSpace:
    """Of three blocks' staging and four slots a slab."""
    size = bytes_of_block(cache)
    return SwapSpace(load_emulated(), cache, num_slots, 3 * size + 5, 4 * size + 5, **options)


def test_blocks_come_back_from_the_host_as_they_went() -> None:
    cache = new_cache((NUM_PLANES, NUM_BLOCKS, 16, 2, 80))
    space, before = new_space(cache), bits(cache)
    blocks, slots = [6, 0, 1, 5, 2], [2, 3, 4, 8, 0]
    out = space.swap_out(blocks, slots)
    out.wait()
    assert out.query()
    assert np.array_equal(bits(cache), before)
    cache.view(torch.uint8).fill_(0)
    space.swap_in([0, 8, 3, 2], [3, 1, 0, 4]).wait()
    expected = np.zeros_like(before)
    expected[:, [3, 1, 0, 4]] = before[:, [2, 5, 0, 6]]
    assert np.array_equal(bits(cache), expected)


def test_a_slot_keeps_the_newest_block() -> None:
    cache = new_cache((NUM_PLANES, NUM_BLOCKS, 16))
    space, before = new_space(cache), bits(cache)
    space.swap_out([0, 1], [7, 8])
    space.swap_out([2], [8])
    space.swap_in([7, 8], [5, 6])
    assert np.array_equal(bits(cache)[:, [5, 6]], before[:, [0, 2]])


def test_slots_in_a_row_are_one_copy_within_a_slab() -> None:
    assert runs_of([2, 3, 4, 5, 9, 8, 1, 2], 4) == [(0, 2, 2), (2, 4, 2), (4, 9, 1), (5, 8, 1), (6, 1, 2)]
    assert runs_of([], 4) == []


@pytest.mark.parametrize(
    ("blocks", "slots", "said"),
    [
        ([0, 0], [1, 2], "a block twice"),
        ([0, 1], [2, 2], "a slot twice"),
        ([NUM_BLOCKS], [0], "block 7 of 7"),
        ([-1], [0], "block -1 of 7"),
        ([0], [9], "slot 9 of 9"),
        ([0], [], "1 blocks for 0 slots"),
    ],
)
def test_what_cannot_be_swapped_is_refused(blocks: list[int], slots: list[int], said: str) -> None:
    space = new_space(new_cache((NUM_PLANES, NUM_BLOCKS, 16)))
    with pytest.raises(ValueError, match=said):
        space.swap_out(blocks, slots)
    with pytest.raises(ValueError, match=said):
        space.swap_in(slots, blocks)


class RecordingLine:
    """What is done on the line, and what beside it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.done.append("begin")
        yield
        self.done.append("end")

    def mark(self) -> Any:
        self.done.append("mark")
        return SimpleNamespace(query=lambda: True, wait=lambda: None)


def test_all_of_a_swap_is_on_its_own_line_and_marked_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    line, cache = RecordingLine(), new_cache((NUM_PLANES, NUM_BLOCKS, 16))
    space = new_space(cache, line=line)
    for name in ("gather", "scatter"):
        method = getattr(KvBlocks, name)
        monkeypatch.setattr(KvBlocks, name, lambda *a, m=method, n=name: (line.done.append(n), m(*a)))
    space.swap_out([0, 1, 2, 3], [0, 1, 2, 3])
    space.swap_in([0], [4])
    assert line.done == ["begin", "gather", "gather", "end", "mark", "begin", "scatter", "end", "mark"]


def test_on_a_device_the_line_waits_for_the_steps_and_an_event_marks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []

    class Stream:
        def __init__(self, device: object) -> None:
            self.device = device

        def wait_stream(self, other: object) -> None:
            done.append(("waits for", other))

    class Event:
        def record(self, stream: Stream) -> None:
            done.append(("recorded on", stream.device))

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        done.append("entered")
        yield
        done.append("left")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"steps on {device}")
    line = swap._Stream(torch.device("cuda:0"))
    with line.beside():
        done.append("copies")
    line.mark()
    assert done == [
        ("waits for", "steps on cuda:0"),
        "entered",
        "copies",
        "left",
        ("recorded on", torch.device("cuda:0")),
    ]
