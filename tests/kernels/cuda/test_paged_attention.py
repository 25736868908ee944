"""Paged attention: the CUDA kernels in the emulator, in all schedules, against float64."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.paged_attention.cuda import PagedAttention, Shape
from tests.kernels.cuda.attention_checks import (
    FP8,
    NUM_KV_HEADS,
    SHAPES,
    STEPS,
    Case,
    Step,
    check,
    of_large_caches,
    shape,
)
from tests.kernels.emulator.module import SCHEDULES, Counts, EmulatedModule, load_emulated

MORE_SHAPES = (
    shape(torch.bfloat16, 256, 2, 32),
    shape(torch.float16, 128, 8),
    shape(torch.float16, 256, 6, 64, FP8),
    shape(torch.float16, 64, 5, 16, FP8),
    shape(torch.bfloat16, 80, 7, 32, FP8),
    shape(torch.float16, 96, 2),
)
ALL_SHAPES = [*SHAPES, *(pytest.param(each, marks=pytest.mark.full) for each in MORE_SHAPES)]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("shape", ALL_SHAPES, ids=str)
def test_attention(shape: Shape, step: Step) -> None:
    first = check(load_emulated(), shape, step)
    for schedule in SCHEDULES[1:]:
        assert torch.equal(Case(shape, step).compute(load_emulated(schedule)), first)


@pytest.mark.parametrize("name", ["decode", "decode, split, window", "decode, narrow window, cap"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=str)
def test_decoding_without_tensor_cores(shape: Shape, name: str) -> None:
    for schedule in SCHEDULES:
        check(load_emulated(schedule), shape, STEPS[name], uses_tensor_cores=False)


def test_groups_of_one_use_tensor_cores_where_they_are_told_to() -> None:
    check(load_emulated(), SHAPES[1], STEPS["decode, split"], uses_tensor_cores=True)


def counts_of(case: Case) -> Counts:
    """Of the only kernel that the case launches, on tensor cores."""
    modules: list[EmulatedModule] = []

    def load(source: Path, instances: Sequence[str]) -> EmulatedModule:
        modules.append(EmulatedModule(source, instances))
        return modules[-1]

    case.compute(load, uses_tensor_cores=True)
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


@pytest.mark.parametrize("uses_tensor_cores", [True, False])
def test_a_cache_of_more_than_2_to_the_31_numbers(uses_tensor_cores: bool) -> None:
    step = STEPS["mixed"]
    check(load_emulated(), SHAPES[0], step, uses_tensor_cores, of_large_caches(Case(SHAPES[0], step)))


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
