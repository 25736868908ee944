"""Faults on purpose, in front of any engine: for tests and chaos runs only.

What a broken device or a bug would do, at a point that a test chooses, so that everything behind it is the real thing.
"""

import ctypes
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kernels.sampling.rows import NOT_FINITE
from services.worker.engine.interface import Engine, Launched, PipelinedEngine, StepInput, StepOutput, Swaps

FOREVER_S = 1e9

HangKind = Literal["sleep", "spin", "gil"]


@dataclass(frozen=True, slots=True)
class Faults:
    """poison: runs of token ids; a step that computes one of them in a row kills the process as SIGKILL does.

    nan_share: share of rows that come out as not finite. oom_share: share of steps that raise MemoryError. hang_step:
    number of the engine's step that hangs for hang_s seconds (0: for ever): asleep, spinning in Python, or holding the
    GIL, so that no other thread of the process runs.
    """

    poison: Sequence[NDArray[np.int32]] = ()
    nan_share: float = 0.0
    oom_share: float = 0.0
    hang_step: int = 0
    hang_s: float = 0.0
    hang_kind: HangKind = "sleep"

    @property
    def is_any(self) -> bool:
        """Whether any fault is wished for."""
        return bool(self.poison or self.nan_share or self.oom_share or self.hang_step)


class FaultyEngine:
    """An engine with faults; see services.worker.engine.interface.Engine."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self.model = engine.model
        self.model_version = engine.model_version
        self.device = engine.device
        self.kernels = engine.kernels
        self.num_blocks = engine.num_blocks
        self.block_size = engine.block_size
        self.max_model_len = engine.max_model_len
        self.vocab_size = engine.vocab_size
        self.num_swap_slots = engine.num_swap_slots
        self._engine = engine
        self.faults = faults
        self._num_steps = 0
        self._random = random.Random()

    def warm_up(self) -> None:
        """Without faults: they are for requests."""
        self._engine.warm_up()

    def step(self, batch: StepInput) -> StepOutput:
        """The engine's step, or the fault whose turn it is."""
        self._num_steps += 1
        self.strike(batch, self._num_steps)
        return self.spoiled(batch, self._engine.step(batch))

    def strike(self, batch: StepInput, number: int) -> None:
        """What comes in the place of this step, the number-th. Raises MemoryError."""
        faults = self.faults
        if number == faults.hang_step:
            hang(faults.hang_kind, faults.hang_s)
        if any(computes(batch, marker) for marker in faults.poison):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._happens(faults.oom_share):
            raise MemoryError("a test asked for it")

    def spoiled(self, batch: StepInput, output: StepOutput) -> StepOutput:
        """The output with some rows that are not finite."""
        for row in range(len(batch.rows)):
            if self._happens(self.faults.nan_share):
                output.errors[row] = NOT_FINITE
        return output

    def swap(self, swaps: Swaps) -> None:
        """The engine's."""
        self._engine.swap(swaps)

    def _happens(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


class PipelinedFaultyEngine(FaultyEngine):
    """Faults of an engine with a queue come as a device's do: when its step is waited for."""

    def __init__(self, engine: PipelinedEngine, faults: Faults) -> None:
        super().__init__(engine, faults)
        self._pipelined = engine

    def launch(self, batch: StepInput) -> Launched:
        """See PipelinedEngine."""
        self._num_steps += 1
        return _FaultyStep(self, batch, self._num_steps, self._pipelined.launch(batch))


class _FaultyStep:
    """See Launched."""

    def __init__(self, engine: PipelinedFaultyEngine, batch: StepInput, number: int, launched: Launched) -> None:
        self._engine = engine
        self._batch = batch
        self._number = number
        self._launched = launched

    def wait(self) -> None:
        """Then comes the fault. Raises MemoryError if it is its turn."""
        self._launched.wait()
        self._engine.strike(self._batch, self._number)

    def output(self) -> StepOutput:
        """The engine's, or spoiled."""
        return self._engine.spoiled(self._batch, self._launched.output())


def with_faults(engine: Engine, faults: Faults) -> Engine:
    """The engine behind the faults; the engine itself without any."""
    if not faults.is_any:
        return engine
    return (
        PipelinedFaultyEngine(engine, faults) if isinstance(engine, PipelinedEngine) else FaultyEngine(engine, faults)
    )


def hang(kind: HangKind, seconds: float) -> None:
    """Do nothing useful for some seconds, 0 for ever; see Faults."""
    if kind == "gil":
        # A PyDLL keeps the GIL during its calls, as a native module does that forgets to give it back.
        ctypes.PyDLL(None).poll(None, 0, int(seconds * 1000) or -1)
    elif kind == "spin":
        until_s = time.perf_counter() + (seconds or FOREVER_S)
        while time.perf_counter() < until_s:
            pass
    else:
        time.sleep(seconds or FOREVER_S)


def computes(batch: StepInput, marker: NDArray[np.int32]) -> bool:
    """Whether one sequence has these ids in a row among those that this step computes."""
    if not _holds(batch.token_ids, marker):
        return False
    parts = np.split(batch.token_ids, batch.cu_seqlens_q[1:-1])
    return any(_holds(part, marker) for part in parts)


def _holds(token_ids: NDArray[np.int32], marker: NDArray[np.int32]) -> bool:
    if len(token_ids) < len(marker):
        return False
    return bool((sliding_window_view(token_ids, len(marker)) == marker).all(axis=1).any())
