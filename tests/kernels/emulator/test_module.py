"""What the emulator refuses before it runs anything, and that its functions are those of a device."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.cuda.compiler import compile_kernels
from kernels.cuda.module import Argument, Dim3
from kernels.cuda.sources import ROOT
from tests.kernels.emulator import probes
from tests.kernels.emulator.build import EMULATOR

INTS, FLOATS = torch.zeros(8, dtype=torch.int32), torch.zeros(8)


def launch(arguments: tuple[Argument, ...], grid: Dim3 = (1, 1, 1), block: Dim3 = (1, 1, 1), shared: int = 0) -> None:
    """Narrows no numbers. Takes bfloat16's memory, float's memory and an int."""
    module = probes.load("conversions")
    module.launch("tokenbus::narrowed<__nv_bfloat16>", grid, block, arguments, shared)


GOOD: tuple[Argument, ...] = (torch.zeros(8, dtype=torch.bfloat16), FLOATS, np.int32(0))


@pytest.mark.parametrize(
    ("place", "argument", "problem"),
    [
        (0, np.uint64(0), "argument 0: a number for a pointer"),
        (0, torch.zeros(8), "argument 0: torch.float32 in memory where elements of 2 bytes are taken"),
        (1, torch.zeros(8, dtype=torch.int64), "argument 1: torch.int64 in memory where elements of 4 bytes are taken"),
        (2, np.int64(0), "argument 2: int64 for an integer number of 4 bytes"),
        (2, np.int16(0), "argument 2: int16 for an integer number of 4 bytes"),
        (2, np.float32(0), "argument 2: float32 for an integer number of 4 bytes"),
        (2, INTS, "argument 2: an address for a number of 4 bytes"),
        (2, None, "argument 2: an address for a number of 4 bytes"),
    ],
)
def test_an_argument_of_another_kind_is_refused(place: int, argument: Argument, problem: str) -> None:
    launch(GOOD)
    with pytest.raises(TypeError, match=re.escape(problem)):
        launch((*GOOD[:place], argument, *GOOD[place + 1 :]))


@pytest.mark.parametrize("number", [0, 0.0, True])
def test_a_number_of_python_is_refused(number: object) -> None:
    with pytest.raises(TypeError, match="a NumPy number or None"):
        launch((*GOOD[:2], number))  # type: ignore[arg-type]


def test_a_floating_number_is_taken_for_one_alone() -> None:
    module, out = probes.load("conversions"), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(TypeError, match="argument 2: float64 for a floating number of 4 bytes"):
        module.launch("tokenbus::two_packed<__half>", (1, 1, 1), (1, 1, 1), (out, np.float32(1), np.float64(1)))
    with pytest.raises(TypeError, match="argument 1: int32 for a floating number of 4 bytes"):
        module.launch("tokenbus::two_packed<__half>", (1, 1, 1), (1, 1, 1), (out, np.int32(1), np.float32(1)))


def test_too_many_or_too_few_arguments_are_refused() -> None:
    for arguments in (GOOD[:2], (*GOOD, np.int32(0))):
        with pytest.raises(TypeError, match=f"takes 3 arguments, not {len(arguments)}"):
            launch(arguments)


def test_memory_of_bytes_goes_as_memory_of_anything_and_none_as_null() -> None:
    launch((torch.zeros(16, dtype=torch.uint8), None, np.int32(0)))


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 65536, 1), (1, 1, 65536)])
def test_a_grid_that_a_device_cannot_launch_is_refused(grid: Dim3) -> None:
    with pytest.raises(ValueError, match=re.escape(f"a grid of {grid} blocks")):
        launch(GOOD, grid=grid)


@pytest.mark.parametrize("block", [(0, 1, 1), (1025, 1, 1), (32, 33, 1), (1, 1, 65), (1, 1, 0)])
def test_a_block_that_a_device_cannot_launch_is_refused(block: Dim3) -> None:
    with pytest.raises(ValueError, match=re.escape(f"a block of {block} threads")):
        launch(GOOD, block=block)


def test_more_shared_memory_than_a_device_has_is_refused() -> None:
    launch(GOOD, shared=227 << 10)
    with pytest.raises(ValueError, match="bytes of dynamic shared memory"):
        launch(GOOD, shared=(227 << 10) + 1)


@pytest.mark.parametrize("name", probes.NAMES)
def test_the_probes_compile_for_a_device_too(name: str) -> None:
    """What the emulator takes is CUDA, then, and not merely C++."""
    compiled = compile_kernels(probes.source(name), probes.instances(name), "sm_80")
    assert set(compiled.resources) == set(probes.instances(name))


def test_the_emulator_and_the_device_have_the_same_functions() -> None:
    on_a_device = declarations(ROOT / "kernels/cuda/ptx.cuh", "static __device__ __forceinline__")
    emulated = declarations(EMULATOR / "matrix.h", "static inline")
    on_a_device.pop("shared_address")  # the one that only they need
    assert emulated == on_a_device
    assert {"cp_async_16", "cp_async_wait", "ldmatrix_4", "mma_16x8x16", "exp2_fast", "load_16"} <= set(emulated)
    macro = re.compile(r"#define SHARED_MEMORY\(([^)]*)\)")
    texts = [file.read_text() for file in (ROOT / "kernels/cuda/ptx.cuh", EMULATOR / "matrix.h")]
    assert len({found[1] for text in texts if (found := macro.search(text)) is not None}) == 1


def declarations(file: Path, qualifiers: str) -> dict[str, str]:
    """Of functions in namespace tokenbus: template line, result and parameters by name, in one way of spacing."""
    text = re.sub(r"//[^\n]*", "", file.read_text()).partition("namespace tokenbus {")[2].replace(qualifiers, "\0")
    head = re.compile(r"(template\s*<[^>]*>\s*)?\0\s*([\w\s*]+?)\s*\b(\w+)\(((?:[^(){}]|\([^()]*\))*)\)\s*[{;]")
    return {
        found[3]: " ".join(f"{found[1] or ''} {found[2]} ({found[4]})".split())
        for found in head.finditer(text)
    }  # fmt: skip
