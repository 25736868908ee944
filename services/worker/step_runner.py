"""Steps on an engine: from a plan to the engine, from the engine's output to a frame.

An engine that can, is given a step while the one before it still runs: then nothing that the host does between two
steps keeps the device waiting. Whatever goes wrong, steps are finished in their order and each once.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from typing import Literal, TypeVar

import numpy as np
from structlog.typing import FilteringBoundLogger

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor, Step
from services.worker.engine.interface import Engine, Launched, PipelinedEngine, StepInput, StepOutput, Swaps
from services.worker.engine.isolation import EngineBroken, is_out_of_memory, is_sticky, step_one_by_one
from services.worker.native_threads import NativeThread
from shared.messages.codec import encode
from shared.messages.pipeline import Rows

MAX_FAILURES_IN_A_ROW = 3
MAX_RUNNING = 2
_MOST_PATIENCE_S = 0.002  # the next plan comes within a millisecond or so
_PATIENCE = 0.5  # of a step like the last one

Failure = Literal["exception", "out_of_memory"]
T = TypeVar("T")


@dataclass(slots=True)
class StepDone:
    """A step was computed. data: the frame, encoded. wait_s: how long its plan was waited for, None if it continues
    no sequence, since then there was nothing to compute meanwhile; step_s: the engine's time, and computed_s its end by
    perf_counter; overhead_s: of this thread around it, from plan to engine and from engine to frame, while no other
    step ran; num_sequences: held after it; failure: why its sequences had to be computed one by one, None if they had
    not. num_swapped_blocks: that went out or in before it, in swap_s, which step_s does not count."""

    frame: Rows
    data: bytes
    num_tokens: int
    num_sequences: int
    step_s: float
    computed_s: float
    overhead_s: float
    wait_s: float | None
    failure: Failure | None = None
    num_swapped_blocks: int = 0
    swap_s: float = 0.0


@dataclass(slots=True)
class StepDropped:
    """The plan's epoch was over before the step began, or before its output was there."""

    epoch: int
    step: int


@dataclass(slots=True)
class _Running:
    """A step that the engine has. launched: None if it could not be launched, or has to be computed again, since the
    step before it failed. computed_s: when it was, by perf_counter; error: what came of it instead. is_watched: another
    thread waits for it, and then sets is_computed."""

    step: Step
    wait_s: float
    swap_s: float
    taken_s: float
    begun_s: float
    launched: Launched | None = None
    failure: Failure | None = None
    computed_s: float = 0.0
    error: Exception | None = None
    is_watched: bool = False
    is_computed: Event = field(default_factory=Event)


class _Done:
    """A step of an engine that has computed it already when it is asked for."""

    def __init__(self, output: StepOutput) -> None:
        self._output = output

    def wait(self) -> None:
        """There is nothing to wait for."""

    def output(self) -> StepOutput:
        """See Launched."""
        return self._output


class StepRunner:
    """Called from one thread. on_computed: called from another one whenever a step that is watched has been computed.

    patience_s: how long to wait for the next plan before the running step is watched. It hardly ends meanwhile; and
    once the plan is there, this thread can wait for the step itself, which costs less than to hear of it from another.
    """

    def __init__(
        self, engine: Engine, executor: PlanExecutor, log: FilteringBoundLogger, on_computed: Callable[[], None]
    ) -> None:
        self.executor = executor
        self._engine = engine
        self._log = log
        self._on_computed = on_computed
        self._running: deque[_Running] = deque()
        self.patience_s = 0.0
        self._computed_s = 0.0  # the newest finished step's
        self._failures_in_a_row = 0
        self._pipelined = engine if isinstance(engine, PipelinedEngine) else None
        self._to_watch: SimpleQueue[_Running | None] = SimpleQueue()
        self._watcher: NativeThread | None = None

    def close(self) -> None:
        """No step is begun any more."""
        self._to_watch.put(None)

    def __len__(self) -> int:
        return len(self._running)

    @property
    def first(self) -> tuple[int, int] | None:
        """Epoch and step of the one that was begun first and is not finished."""
        return (self._running[0].step.epoch, self._running[0].step.number) if self._running else None

    @property
    def is_first_computed(self) -> bool:
        """Whether it is known that there is a step to be finished without a wait."""
        return bool(self._running) and self._running[0].is_computed.is_set()

    @property
    def is_full(self) -> bool:
        """Whether nothing can be done before the first step is finished."""
        return len(self._running) == MAX_RUNNING

    @property
    def runs_unwatched(self) -> bool:
        """Whether nobody would tell that the first step has been computed."""
        return bool(self._running) and not (self._running[0].is_watched or self._running[0].is_computed.is_set())

    def watch(self) -> None:
        """Have on_computed called once the first step has been computed."""
        if self._watcher is None:
            self._watcher = NativeThread(self._watch_steps, "engine-watch")
            self._watcher.start()
        self._running[0].is_watched = True
        self._to_watch.put(self._running[0])

    def start(self, plan: PlanColumns, wait_s: float) -> bool:
        """Begin the plan's step; False, with nothing done, if a step that runs must be finished first.

        Raises EngineBroken.
        """
        taken_s = time.perf_counter()
        step = self._begin(plan)
        if step is None:
            return False
        swap_s = self._swap(step.swaps)
        running = _Running(step, wait_s, swap_s, taken_s, time.perf_counter())
        batch = step.batch
        if batch is not None:
            running.launched = self._attempt(lambda: self._launch(batch), running)
        self._running.append(running)
        if self._pipelined is None or running.launched is None:
            self._note_computed(running)
        return True

    def _begin(self, plan: PlanColumns) -> Step | None:
        if not self._running:
            return self.executor.begin(plan)
        if self._pipelined is None or self.is_full or self._running[0].launched is None:
            return None
        return self.executor.begin_ahead(plan)

    def _launch(self, batch: StepInput) -> Launched:
        return _Done(self._engine.step(batch)) if self._pipelined is None else self._pipelined.launch(batch)

    def _watch_steps(self) -> None:
        while (running := self._to_watch.get()) is not None:
            self._wait(running)
            self._on_computed()

    def _wait(self, running: _Running) -> None:
        try:
            if running.launched is not None:
                running.launched.wait()
        except Exception as error:  # belongs to the thread that finishes the step
            running.error = error
        self._note_computed(running)

    def _wait_or_hear(self, running: _Running) -> None:
        """Until it is computed, here or by whoever watches."""
        if running.is_watched or running.is_computed.is_set():
            running.is_computed.wait()
        else:
            self._wait(running)

    def _note_computed(self, running: _Running) -> None:
        running.computed_s = time.perf_counter()
        running.is_computed.set()

    # ---- the step's end ---------------------------------------------------------------------------------------------

    def finish_first(self, newest_epoch: Callable[[], int]) -> StepDone | StepDropped:
        """The step that was begun first, once it is computed. Raises EngineBroken."""
        running = self._running[0]
        self._wait_or_hear(running)
        step = running.step
        output = self._output(running) if step.epoch == newest_epoch() else None
        self._running.popleft()
        started_s = max(running.begun_s, self._computed_s)
        before_s = max(0.0, running.begun_s - running.swap_s - max(running.taken_s, self._computed_s))
        # One with nothing to compute was computed when it was begun, maybe before the step in front of it.
        self._computed_s = running.computed_s = max(started_s, running.computed_s)
        if output is None or step.epoch != newest_epoch():
            return StepDropped(step.epoch, step.number)
        frame = self.executor.finish(step, output)
        data = encode(frame)
        if step.batch is not None:
            self.patience_s = min(_MOST_PATIENCE_S, _PATIENCE * (running.computed_s - started_s))
        after_s = 0.0 if self._running else time.perf_counter() - running.computed_s
        return StepDone(
            frame=frame,
            data=data,
            num_tokens=len(step.batch.token_ids) if step.batch is not None else 0,
            num_sequences=len(self.executor.table),
            step_s=running.computed_s - started_s,
            computed_s=running.computed_s,
            overhead_s=before_s + after_s,
            wait_s=running.wait_s if step.is_awaited else None,
            failure=running.failure,
            num_swapped_blocks=0 if step.swaps is None else len(step.swaps.out) + len(step.swaps.back),
            swap_s=running.swap_s,
        )

    def _output(self, running: _Running) -> StepOutput:
        is_late = running.launched is None
        if is_late:  # then no step has been begun behind it
            self.executor.leave_out_ended(running.step)
        batch = running.step.batch
        if batch is None:
            return StepOutput(np.zeros(0, dtype=np.int32))
        if running.failure is None:
            output = self._attempt(lambda: self._result(batch, running), running)
            if is_late:
                self._note_computed(running)
            if output is not None:
                self._failures_in_a_row = 0
                return output
        # Not before the error is gone: it keeps the failed step's memory, which may be what is lacking.
        running.launched = running.error = None
        for later in list(self._running)[1:]:
            self._wait_or_hear(later)
            later.launched = later.error = None  # it went on with tokens that nobody has sampled
        output = self._recover(batch, running)
        self._note_computed(running)
        return output

    def _result(self, batch: StepInput, running: _Running) -> StepOutput:
        if running.error is not None:
            raise running.error
        return self._engine.step(batch) if running.launched is None else running.launched.output()

    def _attempt(self, call: Callable[[], T], running: _Running) -> T | None:
        """None if it fails, and then `running` says why."""
        try:
            return call()
        except EngineBroken:
            raise
        except Exception as error:
            if is_sticky(error):
                raise EngineBroken(f"the device's context is lost: {error}") from error
            failure: Failure = "out_of_memory" if is_out_of_memory(error) else "exception"
            step = running.step.number
            self._log.exception("the step failed; trying its sequences one by one", step=step, failure=failure)
            running.failure = failure
        return None

    def _recover(self, batch: StepInput, running: _Running) -> StepOutput:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise EngineBroken(f"{self._failures_in_a_row} steps in a row failed ({running.failure})")
        return step_one_by_one(self._engine, batch)

    def _swap(self, swaps: Swaps | None) -> float:
        """Seconds that it took. Whatever fails here leaves blocks that nobody can believe: the worker ends."""
        if swaps is None:
            return 0.0
        begun_s = time.perf_counter()
        try:
            self._engine.swap(swaps)
        except Exception as error:
            raise EngineBroken(f"blocks could not be swapped: {error}") from error
        return time.perf_counter() - begun_s
