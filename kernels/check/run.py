"""Compiling, comparing, timing."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import torch

from kernels.check.case import Case, Trial
from kernels.check.outcome import Comparison, Compilation
from kernels.cuda.catalogue import Kernels
from kernels.cuda.module import LoadKernels

if TYPE_CHECKING:
    from kernels.cuda.compiler import Compiled  # which needs CuPy

Compile = Callable[[Kernels], "Compiled"]
Measure = Callable[[Callable[[], None]], float]  # seconds of a launch

_WARM_UPS, _TIMES = 3, 20
_FLUSHED_BYTES = 256 << 20  # more than any device's cache
_COPIED_BYTES = 1 << 30


def compile_all(catalogue: Sequence[Kernels], compile_kernels: Compile) -> Iterator[Compilation]:
    """One after the other."""
    for kernels in catalogue:
        name, count, allowed = _name(kernels), len(kernels.instances), kernels.max_registers
        try:
            resources = compile_kernels(kernels).resources.values()
        except Exception as error:
            yield Compilation(kernels.operation, name, count, None, allowed, _told(error))
            continue
        registers, spilled = (
            max(used) for used in zip(*((each.registers, each.spilled) for each in resources), strict=True)
        )
        problem = None
        if spilled:
            problem = f"{spilled} bytes of registers are spilled"
        elif registers > allowed:
            problem = f"{registers} registers a thread"
        yield Compilation(kernels.operation, name, count, registers, allowed, problem)


def compare_all(
    cases: Sequence[Case],
    load: LoadKernels,
    device: torch.device,
    measure: Measure | None,
    copy_gb_per_s: float | None,
) -> Iterator[Comparison]:
    """measure: None in the emulator, whose times say nothing."""
    for case in cases:
        try:
            trial = case.prepare(load, device)
            trial.launch()
            yield _compared(case, trial, trial.compare(), measure, copy_gb_per_s)
        except Exception as error:  # of any kind: the other cases are still worth knowing
            yield Comparison(case.operation, case.what, problem=_told(error))


def _compared(
    case: Case, trial: Trial, error: float, measure: Measure | None, copy_gb_per_s: float | None
) -> Comparison:
    problem = None if error <= 1 else "differs from the reference"
    if measure is None or problem is not None:
        return Comparison(case.operation, case.what, error, problem=problem)
    seconds = measure(trial.launch)
    rate = trial.num_bytes / seconds / 1e9
    share = rate / copy_gb_per_s if copy_gb_per_s else None
    computed = trial.num_operations / seconds / 1e12 if trial.num_operations else None
    return Comparison(case.operation, case.what, error, seconds * 1e6, rate, share, tflop_per_s=computed)


def _name(kernels: Kernels) -> str:
    """Of the function, without namespace and template arguments."""
    return kernels.instances[0].partition("<")[0].rpartition("::")[2]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class DeviceClock:
    """Times launches on the current device, each with the caches full of other data."""

    def __init__(self, device: torch.device) -> None:
        self._other = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)

    def __call__(self, launch: Callable[[], None]) -> float:
        """The median, in seconds."""
        for _ in range(_WARM_UPS):
            launch()
        pairs = []
        for _ in range(_TIMES):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")  # type: ignore[no-untyped-call]
            self._other.zero_()  # which also keeps the device busy until the launch is queued
            begin.record()
            launch()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return float(median(begin.elapsed_time(end) for begin, end in pairs)) / 1e3

    def copy_gb_per_s(self) -> float:
        """What the device's memory can: bytes read and written by a plain copy."""
        one, other = (torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=self._other.device) for _ in "ab")
        one.zero_()

        def copy() -> None:
            other.copy_(one)

        return 2 * _COPIED_BYTES / self(copy) / 1e9
