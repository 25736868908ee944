"""Kernels in the emulator, launched as on a device."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.cuda.arguments import as_number
from kernels.cuda.module import Argument, Dim3, KernelModule
from tests.kernels.emulator.build import FAST, OURS, Tree, build
from tests.kernels.emulator.checks import Parameter, check_shape, mismatch

FORWARD, BACKWARD, RANDOM, AHEAD = range(4)
MESSAGE_BYTES = 400


class EmulationError(RuntimeError):
    """A kernel did what no kernel may."""


@dataclass(frozen=True)
class Schedule:
    """order: in which threads and blocks take turns, with AHEAD one warp as far as it gets before another one moves;
    seed: of a random one; poison: the byte that shared memory is full of at a block's beginning."""

    order: int = FORWARD
    seed: int = 1
    poison: int = 0xFF


SCHEDULES = (
    Schedule(),
    Schedule(BACKWARD, poison=0),
    Schedule(RANDOM, seed=7, poison=1),
    Schedule(AHEAD, poison=0x3C),
)


class _Schedule(ctypes.Structure):
    _fields_ = (("order", ctypes.c_int32), ("seed", ctypes.c_uint32), ("poison", ctypes.c_int32))


class _Request(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("arguments", ctypes.c_void_p),
        ("schedule", _Schedule),
    )


class Counts(ctypes.Structure):
    """See counts.h."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "threads",
            "barriers",
            "collectives",
            "matrix_products",
            "matrix_loads",
            "bank_conflicts",
            "copied_bytes",
            "loaded_bytes",
        )
    )


class EmulatedModule:
    """A KernelModule on the processor. counts: of the newest launch."""

    def __init__(
        self,
        source: Path,
        instances: Sequence[str],
        schedule: Schedule = SCHEDULES[0],
        flags: Sequence[str] = FAST,
        tree: Tree = OURS,
    ) -> None:
        self.counts = Counts()
        self._schedule = schedule
        self._library = ctypes.CDLL(str(build(source, instances, flags, tree)))
        self._indices = {instance: index for index, instance in enumerate(instances)}

    def launch(
        self, instance: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument], shared_bytes: int = 0
    ) -> None:
        """See KernelModule. Raises EmulationError, ValueError and TypeError."""
        check_shape(grid, block, shared_bytes)
        values = [as_number(argument).tobytes() for argument in arguments]
        self._check(instance, arguments)
        kept = [ctypes.create_string_buffer(value, len(value)) for value in values]
        addresses = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(value) for value in kept))
        schedule = _Schedule(self._schedule.order, self._schedule.seed, self._schedule.poison)
        request = _Request(grid, block, shared_bytes, ctypes.addressof(addresses), schedule)
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        failed = self._function(instance, "launch")(
            ctypes.byref(request), ctypes.byref(self.counts), message, ctypes.c_size_t(MESSAGE_BYTES)
        )
        if failed:
            raise EmulationError(f"{instance}: {message.value.decode()}")

    def _check(self, instance: str, arguments: Sequence[Argument]) -> None:
        count = self._function(instance, "num_arguments")()
        if count != len(arguments):
            raise TypeError(f"{instance} takes {count} arguments, not {len(arguments)}")
        parameters = (Parameter * count)()
        self._function(instance, "parameters")(parameters)
        for place, (argument, parameter) in enumerate(zip(arguments, parameters, strict=True)):
            problem = mismatch(argument, parameter)
            if problem:
                raise TypeError(f"{instance}, argument {place}: {problem}")

    def _function(self, instance: str, name: str) -> Any:
        return getattr(self._library, f"kernel{self._indices[instance]}_{name}")


def load_emulated(schedule: Schedule = SCHEDULES[0], flags: Sequence[str] = FAST) -> Any:
    """A LoadKernels for the emulator."""

    def load(source: Path, instances: Sequence[str]) -> KernelModule:
        return EmulatedModule(source, instances, schedule, flags)

    return load
