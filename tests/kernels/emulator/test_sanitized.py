"""The sanitizers find what they are for, and nothing else."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from kernels.cuda.module import Argument, LoadKernels
from tests.kernels.emulator import probes
from tests.kernels.emulator.sanitized import MEMORY, THREADS, Check, Sanitizer

ONE = (1, 1, 1)
SIZE = 4096 + 48  # of tensors; a page and some


def launch(load: LoadKernels, file: str, kernel: str, num_threads: int, *arguments: Argument) -> None:
    """One block of a probe."""
    instances = [f"tokenbus::{kernel}"]
    load(probes.source(file), probes.instances(file)).launch(instances[0], ONE, (num_threads, 1, 1), arguments)


def race(kernel: str, num_threads: int, is_right: bool) -> Check:
    """A check that runs this kernel, under a name of its own in this module."""

    def check(load: LoadKernels) -> None:
        arguments: list[Argument] = [torch.zeros(64, dtype=torch.int32)]
        if kernel == "copied":
            arguments.append(torch.arange(256, dtype=torch.int32))
        launch(load, "races", f"{kernel}<{str(is_right).lower()}>", num_threads, *arguments)

    return named(f"{kernel}_{'right' if is_right else 'wrong'}", check)


def memory(kernel: str, offset: int, *arguments: Callable[[], Argument], num_threads: int = 1) -> Check:
    """A check that runs this kernel with this offset."""

    def check(load: LoadKernels) -> None:
        launch(load, "memory", kernel, num_threads, *(make() for make in arguments), np.int32(offset))

    return named(f"{kernel}_at_{offset}".replace("-", "minus_"), check)


def named(name: str, check: Check) -> Check:
    """So that the other process finds it."""
    check.__name__ = check.__qualname__ = name
    globals()[name] = check
    return check


def name(parameter: object) -> str:
    """Of a check, for a test's."""
    return str(getattr(parameter, "__name__", ""))


KERNELS = {
    "neighbours": 64,
    "overwritten": 64,
    "lanes": 32,
    "overwritten_in_a_warp": 32,
    "copied": 64,
    "loaded_as_matrices": 32,
    "global": 64,
    "added": 64,
    "some_end": 64,
}
RIGHT = [race(kernel, num_threads, True) for kernel, num_threads in KERNELS.items()]
WRONG = [race(kernel, num_threads, False) for kernel, num_threads in KERNELS.items()]


def some_bytes() -> torch.Tensor:
    """Of SIZE."""
    return torch.arange(SIZE, dtype=torch.uint8)


def number() -> torch.Tensor:
    """One of 4 bytes."""
    return torch.zeros(1, dtype=torch.int32)


def numbers() -> torch.Tensor:
    """One for each lane."""
    return torch.zeros(32, dtype=torch.int32)


def size() -> Argument:
    """Of some_bytes."""
    return np.int32(SIZE)


def nothing() -> Argument:
    """No memory."""
    return None


# Each kernel, and what is said of an offset that is not 0.
MEMORY_KERNELS = {
    memory("reads_bytes", 0, some_bytes, some_bytes, size, num_threads=32): "",
    memory("reads_bytes", 1, some_bytes, some_bytes, size, num_threads=32): "SIGSEGV",
    memory("reads_bytes", -1, some_bytes, some_bytes, size, num_threads=32): "SIGSEGV",
    memory("writes_bytes", 0, some_bytes, size, num_threads=32): "",
    memory("writes_bytes", 1, some_bytes, size, num_threads=32): "SIGSEGV",
    memory("writes_bytes", -1, some_bytes, size, num_threads=32): "written outside a tensor",
    memory("reads_16_bytes", 0, number, some_bytes): "",
    memory("reads_16_bytes", 8, number, some_bytes): "misaligned address",
    memory("reads_a_variable", 0, numbers, num_threads=32): "",
    memory("reads_a_variable", 1, numbers, num_threads=32): "index 32 out of bounds",
    memory("multiplies", 0, number): "",
    memory("multiplies", 1, number): "signed integer overflow",
    memory("shifts", 0, number): "",
    memory("shifts", 1, number): "shift exponent 40 is too large",
    memory("reads_null", 0, number, nothing): "",
    memory("reads_null", 1, number, nothing): "null pointer",
}


@pytest.fixture(scope="module")
def of_memory() -> Iterator[Sanitizer]:
    with Sanitizer(MEMORY) as sanitizer:
        yield sanitizer


@pytest.fixture(scope="module")
def of_threads() -> Iterator[Sanitizer]:
    with Sanitizer(THREADS) as sanitizer:
        yield sanitizer


@pytest.mark.parametrize(("check", "expected"), MEMORY_KERNELS.items(), ids=name)
def test_memory_used_as_it_may_not_be_is_found(of_memory: Sanitizer, check: Check, expected: str) -> None:
    text = of_memory.finding(check)
    assert expected in text if expected else not text


def test_what_a_check_raises_is_a_finding(of_memory: Sanitizer) -> None:
    assert "AssertionError: of the check" in of_memory.finding(raises)


def raises(load: LoadKernels) -> None:
    """Whatever is loaded."""
    raise AssertionError("of the check")


@pytest.mark.full
@pytest.mark.parametrize("check", RIGHT, ids=name)
def test_there_are_no_races_where_there_are_none(of_threads: Sanitizer, check: Check) -> None:
    assert of_threads.finding(check) == ""


@pytest.mark.full
@pytest.mark.parametrize("check", WRONG, ids=name)
def test_races_are_found(of_threads: Sanitizer, check: Check) -> None:
    assert "ThreadSanitizer: data race" in of_threads.finding(check)
