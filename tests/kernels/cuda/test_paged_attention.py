"""Paged attention: the CUDA kernels in the emulator, in all schedules, against float64."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.cuda.module import LoadKernels
from kernels.paged_attention import reference
from kernels.paged_attention.cuda import DeviceItems, DeviceStep, PagedAttention, Shape
from kernels.paged_attention.items import cut
from tests.kernels.arrays import PagedContext, make_paged_context
from tests.kernels.emulator.module import SCHEDULES, Counts, EmulatedModule, Schedule, load_emulated

FP8 = torch.float8_e4m3fn
MAP_NORESERVE = 0x4000  # of Linux
NUM_KV_HEADS = 2
# Errors of the whole output, relative to its norm: a query's weights are rounded to its dtype once.
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3}


def shape(
    dtype: torch.dtype, head_dim: int, group: int, block_size: int = 16, cache: torch.dtype | None = None
) -> Shape:
    return Shape(
        dtype=dtype,
        cache_dtype=cache or dtype,
        num_heads=group * NUM_KV_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=head_dim,
        block_size=block_size,
        scale=head_dim**-0.5,
    )


SHAPES = (
    shape(torch.bfloat16, 64, 3),
    shape(torch.float16, 80, 1, 32),
    shape(torch.bfloat16, 128, 4, 16, FP8),
    shape(torch.bfloat16, 96, 16, 64),
)
MORE_SHAPES = (
    shape(torch.bfloat16, 256, 2, 32),
    shape(torch.float16, 128, 8),
    shape(torch.float16, 256, 6, 64, FP8),
    shape(torch.float16, 64, 5, 16, FP8),
    shape(torch.bfloat16, 80, 7, 32, FP8),
    shape(torch.float16, 96, 2),
)
ALL_SHAPES = [*SHAPES, *(pytest.param(each, marks=pytest.mark.full) for each in MORE_SHAPES)]


@dataclass(frozen=True)
class Step:
    """lengths: queries and context of each sequence. num_parallel: what the device runs at a time, which decides how
    often a sequence is split."""

    lengths: tuple[tuple[int, int], ...]
    num_parallel: int = 1
    sliding_window: int = 0
    soft_cap: float = 0.0


DECODE = Step(((1, 1), (1, 16), (1, 77), (1, 400)))
STEPS = {
    "decode": DECODE,
    "decode, split": replace(DECODE, num_parallel=4),
    "decode, split, window": replace(DECODE, num_parallel=4, sliding_window=300),
    "decode, narrow window, cap": replace(DECODE, sliding_window=3, soft_cap=1.5),
    "prefill": Step(((5, 5), (33, 33), (70, 130), (2, 100))),
    "prefill, window": Step(((40, 130), (70, 70)), sliding_window=50),
    "prefill, narrow window, cap": Step(((40, 130), (20, 20)), sliding_window=3, soft_cap=1.5),
    "mixed": Step(((1, 300), (9, 40), (1, 5)), num_parallel=4),
}


class Case:
    """A step's inputs for a shape, and what must come out."""

    def __init__(self, shape: Shape, step: Step) -> None:
        rng = np.random.default_rng(7)
        self.shape = replace(shape, soft_cap=step.soft_cap)
        self.step = step
        context = make_paged_context(
            rng, list(step.lengths), shape.num_kv_heads, shape.head_dim, shape.block_size, torch.float32
        )
        self.key_cache, self.value_cache = (
            cache.to(shape.cache_dtype) for cache in (context.key_cache, context.value_cache)
        )
        is_fp8 = shape.cache_dtype == FP8
        self.key_scales = torch.tensor([0.5, 2.0]) if is_fp8 else None
        self.value_scales = torch.tensor([4.0, 0.25]) if is_fp8 else None
        num_tokens = sum(queries for queries, _ in step.lengths)
        size = (num_tokens, shape.num_heads + 2, shape.head_dim)  # beside other heads, as in a fused projection
        self.query = torch.from_numpy(rng.standard_normal(size, dtype=np.float32)).to(shape.dtype)[:, : shape.num_heads]
        self.context = context

    def expected(self) -> NDArray[np.float64]:
        key, value = (
            cache.double() * (1.0 if scales is None else scales[:, None].double())
            for cache, scales in ((self.key_cache, self.key_scales), (self.value_cache, self.value_scales))
        )
        return reference.paged_attention(  # type: ignore[return-value]  # float64 in, float64 out
            self.query.double().numpy(),  # type: ignore[arg-type]
            key.numpy(),  # type: ignore[arg-type]
            value.numpy(),  # type: ignore[arg-type]
            self.context.cu_seqlens_q,
            self.context.context_lens,
            self.context.block_tables,
            self.shape.scale,
            sliding_window=self.step.sliding_window or None,
            soft_cap=self.step.soft_cap,
        )

    def compute(self, schedule: Schedule, uses_tensor_cores: bool | None = None) -> torch.Tensor:
        return self.compute_with(load_emulated(schedule), uses_tensor_cores)

    def compute_with(self, load: LoadKernels, uses_tensor_cores: bool | None = None) -> torch.Tensor:
        shape, step, context = self.shape, self.step, self.context
        attention = PagedAttention(
            load, shape, len(step.lengths), step.num_parallel, uses_tensor_cores=uses_tensor_cores
        )
        out = torch.full(self.query.shape, float("nan"), dtype=shape.dtype)
        attention(
            out,
            self.query,
            self.key_cache,
            self.value_cache,
            device_step(context, shape, step),
            step.sliding_window,
            self.key_scales,
            self.value_scales,
        )
        return out


def device_step(context: PagedContext, shape: Shape, step: Step) -> DeviceStep:
    """With block tables of wild numbers where no block is."""
    tables = context.block_tables.copy()
    for sequence, context_len in enumerate(context.context_lens):
        tables[sequence, -(-int(context_len) // shape.block_size) :] = 2**30
    items = cut(
        context.cu_seqlens_q,
        context.context_lens,
        shape.group,
        shape.num_kv_heads,
        step.num_parallel,
        step.sliding_window,
    )
    columns = (torch.from_numpy(array) for array in (context.cu_seqlens_q, context.context_lens, tables))
    return DeviceStep(*columns, DeviceItems.of(items))


def error(out: torch.Tensor, expected: NDArray[np.float64]) -> float:
    """Of the norm; infinite if not all is finite."""
    difference = np.linalg.norm(out.double().numpy() - expected) / np.linalg.norm(expected)
    return float(difference) if np.isfinite(difference) else float("inf")


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_attention(shape: Shape, step: Step) -> None:
    case = Case(shape, step)
    expected = case.expected()
    results = [case.compute(schedule) for schedule in SCHEDULES]
    assert error(results[0], expected) < TOLERANCE[shape.dtype]
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.parametrize("name", ["decode", "decode, split, window", "decode, narrow window, cap"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=str)
def test_decoding_without_tensor_cores(shape: Shape, name: str) -> None:
    case = Case(shape, STEPS[name])
    expected = case.expected()
    for schedule in SCHEDULES:
        assert error(case.compute(schedule, uses_tensor_cores=False), expected) < TOLERANCE[shape.dtype]


def test_groups_of_one_use_tensor_cores_where_they_are_told_to() -> None:
    case = Case(SHAPES[1], STEPS["decode, split"])
    assert error(case.compute(SCHEDULES[0], uses_tensor_cores=True), case.expected()) < TOLERANCE[torch.float16]


def counts_of(case: Case) -> Counts:
    """Of the only kernel that the case launches, on tensor cores."""
    modules: list[EmulatedModule] = []

    def load(source: Path, instances: Sequence[str]) -> EmulatedModule:
        modules.append(EmulatedModule(source, instances))
        return modules[-1]

    case.compute_with(load, uses_tensor_cores=True)
    return modules[0].counts


def tile_bytes(case: Case, num_tokens: int) -> int:
    """Of keys and values of one head."""
    return 2 * num_tokens * case.shape.head_dim * case.shape.cache_dtype.itemsize


@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_decoding_reads_keys_and_values_once_and_without_bank_conflicts(shape: Shape) -> None:
    case = Case(shape, STEPS["decode"])
    counts = counts_of(case)
    num_tokens = sum(context for _, context in case.step.lengths)
    query_bytes = len(case.step.lengths) * shape.num_heads * shape.head_dim * shape.dtype.itemsize
    assert counts.copied_bytes == query_bytes + NUM_KV_HEADS * tile_bytes(case, num_tokens)
    assert counts.loaded_bytes == 0
    assert counts.bank_conflicts == 0
    assert counts.matrix_loads > 0


@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_prefill_has_no_bank_conflicts(shape: Shape) -> None:
    case = Case(shape, STEPS["prefill, window"])
    counts = counts_of(case)
    assert counts.bank_conflicts == 0
    assert counts.matrix_loads > 0


def test_a_cache_of_more_than_2_to_the_31_numbers() -> None:
    """Its blocks lie at both ends of memory of which hardly any is ever touched."""
    case = Case(SHAPES[0], STEPS["mixed"])
    num_blocks = 2**31 // case.key_cache[0].numel() + 100
    far = case.key_cache.shape[0] // 2
    moved = [block if block < far else num_blocks - block for block in range(case.key_cache.shape[0])]
    caches = []
    for cache in (case.key_cache, case.value_cache):
        numbers = cache[0].numel() * num_blocks
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        memory = torch.frombuffer(mmap.mmap(-1, 2 * numbers, flags=flags), dtype=torch.bfloat16, count=numbers)
        large = memory.view(num_blocks, *cache.shape[1:])
        large[moved] = cache
        caches.append(large)
    expected = case.expected()
    case.key_cache, case.value_cache = caches
    case.context.block_tables = np.array(moved, dtype=np.int32)[case.context.block_tables]
    for uses_tensor_cores in (True, False):
        assert error(case.compute(SCHEDULES[0], uses_tensor_cores), expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head_dim": 72}, "head_dim 72 is none of 64, 80, 96, 128, 256"),
        ({"block_size": 8}, "block_size 8 is none of 16, 32, 64"),
        ({"num_heads": 18}, "18 heads over 2"),
        ({"dtype": torch.float32}, "neither bfloat16 nor float16"),
        ({"cache_dtype": torch.float16}, "a cache of torch.float16 for torch.bfloat16"),
    ],
)
def test_shapes_without_a_kernel_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PagedAttention(load_emulated(), replace(SHAPES[0], **changed), 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need tensor cores"):
        PagedAttention(load_emulated(), SHAPES[3], 1, 1, uses_tensor_cores=False)
