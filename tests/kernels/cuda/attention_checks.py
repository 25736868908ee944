"""What paged attention must do, wherever it is loaded: steps, shapes, and what must come out in float64.

The checks at the end are for sanitizers and planted bugs (see emulator/sanitized.py).
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cuda.module import KernelModule, LoadKernels
from kernels.paged_attention import reference
from kernels.paged_attention.cuda import DeviceItems, DeviceStep, PagedAttention, Shape
from kernels.paged_attention.items import cut
from tests.kernels.arrays import PagedContext, make_paged_context
from tests.kernels.emulator.sanitized import Check

MAP_NORESERVE = 0x4000  # of Linux
FP8 = torch.float8_e4m3fn
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
        self.large: tuple[torch.Tensor, torch.Tensor, NDArray[np.int32]] | None = None  # caches elsewhere, and tables

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

    def compute(self, load: LoadKernels, uses_tensor_cores: bool | None = None) -> torch.Tensor:
        shape, step, context = self.shape, self.step, self.context
        attention = PagedAttention(
            load, shape, len(step.lengths), step.num_parallel, uses_tensor_cores=uses_tensor_cores
        )
        out = torch.full(self.query.shape, float("nan"), dtype=shape.dtype)
        key_cache, value_cache, block_tables = self.large or (self.key_cache, self.value_cache, context.block_tables)
        attention(
            out,
            self.query,
            key_cache,
            value_cache,
            device_step(replace(context, block_tables=block_tables), shape, step),
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


def check(
    load: LoadKernels, shape: Shape, step: Step, uses_tensor_cores: bool | None = None, case: "Case | None" = None
) -> torch.Tensor:
    """What the kernels compute, once it is near enough to float64."""
    case = Case(shape, step) if case is None else case
    expected = case.expected()
    out = case.compute(load, uses_tensor_cores)
    assert error(out, expected) < TOLERANCE[shape.dtype]
    return out


def of_large_caches(case: Case) -> Case:
    """The same, its blocks at both ends of caches of more than 2^31 numbers, of which hardly any is ever touched."""
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
    case.large = caches[0], caches[1], np.array(moved, dtype=np.int32)[case.context.block_tables]
    return case


# ---- one kernel at a time, which builds fast -------------------------------------------------------------------------


def only(kind: str, load: LoadKernels) -> LoadKernels:
    """Of the kernels that are asked for those whose names hold `kind`."""

    def load_some(source: Path, instances: Sequence[str]) -> KernelModule:
        return load(source, [instance for instance in instances if kind in instance])

    return load_some


def decode(load: LoadKernels) -> None:
    """On tensor cores."""
    check(only("decode", load), SHAPES[0], STEPS["decode"])
    check(only("decode", load), SHAPES[0], STEPS["decode, narrow window, cap"])


def decode_of_fp8(load: LoadKernels) -> None:
    """With a scale for each head."""
    check(only("decode", load), SHAPES[2], STEPS["decode"])


def decode_without_tensor_cores(load: LoadKernels) -> None:
    """The other kernel."""
    for name in ("decode", "decode, narrow window, cap"):
        check(only("decode", load), SHAPES[0], STEPS[name], uses_tensor_cores=False)


def decode_of_a_large_cache(load: LoadKernels) -> None:
    """Of more than 2^31 numbers."""
    step = replace(STEPS["decode"], lengths=((1, 77), (1, 40)))
    check(only("decode", load), SHAPES[0], step, case=of_large_caches(Case(SHAPES[0], step)))


def split_decode(load: LoadKernels) -> None:
    """Sequences in several items, and their merge."""
    check(load, SHAPES[0], STEPS["decode, split, window"])


def prefill(load: LoadKernels) -> None:
    """Prompts, whole and in chunks."""
    check(only("prefill", load), SHAPES[0], STEPS["prefill"])
    check(only("prefill", load), SHAPES[0], STEPS["prefill, window"])
    check(only("prefill", load), SHAPES[0], STEPS["prefill, narrow window, cap"])


def prefill_of_fp8(load: LoadKernels) -> None:
    """With a scale for each head."""
    check(only("prefill", load), SHAPES[2], STEPS["prefill, window"])


CHECKS: list[Check] = [decode, decode_of_fp8, decode_without_tensor_cores, split_decode, prefill, prefill_of_fp8]
