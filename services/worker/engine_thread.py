"""The one thread that owns the engine and all state of sequences; the event loop stays free for heartbeats and bus.

The loop submits tasks, the thread answers each with exactly one outcome, in order. Outcomes are handed over with
`deliver`, which must be safe to call from another thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal

from structlog.typing import FilteringBoundLogger

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor, Step
from services.worker.engine.interface import Engine, StepInput, StepOutput, Swaps
from services.worker.engine.isolation import EngineBroken, is_out_of_memory, is_sticky, step_one_by_one
from services.worker.native_threads import NativeThread
from shared.messages.codec import encode
from shared.messages.pipeline import Rows

MAX_FAILURES_IN_A_ROW = 3
_NO_OUTPUT = 0

Failure = Literal["exception", "out_of_memory"]


@dataclass(slots=True)
class StepDone:
    """A step was computed. data: the frame, encoded. wait_s: how long its plan was waited for, None if it continues
    no sequence, since then there was nothing to compute meanwhile; step_s: the engine's time, and computed_s its end by
    perf_counter; overhead_s: of this thread around it, from plan to engine and from engine to frame; num_sequences:
    held after it; failure: why its sequences had to be computed one by one, None if they had not. num_swapped_blocks:
    that went out or in before it, in swap_s, which step_s does not count."""

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
class EpochOpened:
    """All sequences of older epochs are dropped and no step runs; columns of the CacheReport."""

    epoch: int
    block_ids: bytes
    block_hashes: bytes


@dataclass(slots=True)
class EngineFailed:
    """The thread has ended; so must the process, and the sequences move on."""

    error: BaseException


Outcome = StepDone | StepDropped | EpochOpened | EngineFailed


class EngineThread:
    """begun: (epoch, step) of the newest step begun. newest_epoch: set by the loop; older plans are dropped."""

    def __init__(
        self,
        engine: Engine,
        executor: PlanExecutor,
        deliver: Callable[[Outcome], None],
        log: FilteringBoundLogger,
    ) -> None:
        self.begun = (0, 0)
        self.newest_epoch = 0
        self._engine = engine
        self._executor = executor
        self._deliver = deliver
        self._log = log
        self._busy_since_s: float | None = None
        self._failures_in_a_row = 0
        self._tasks: SimpleQueue[PlanColumns | int | None] = SimpleQueue()
        self._thread = NativeThread(self._run, "engine")

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit_plan(self, plan: PlanColumns) -> None:
        """Compute a step; answered by StepDone or StepDropped."""
        self._tasks.put(plan)

    def submit_epoch(self, epoch: int) -> None:
        """Finish the running step, drop all sequences, report; answered by EpochOpened."""
        self.newest_epoch = epoch
        self._tasks.put(epoch)

    @property
    def busy_s(self) -> float:
        """Seconds that the task at hand has taken so far, 0 without one; for any thread to ask."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else time.perf_counter() - since_s

    def stop(self, timeout_s: float) -> bool:
        """End after the tasks at hand; whether it has ended in time."""
        self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while True:
                waiting_since_s = time.perf_counter()
                task = self._tasks.get()
                if task is None:
                    return
                now_s = time.perf_counter()
                self._busy_since_s = now_s
                if isinstance(task, int):
                    outcome: Outcome = EpochOpened(task, *self._executor.open_epoch())
                else:
                    outcome = self._run_plan(task, now_s - waiting_since_s)
                self._busy_since_s = None
                self._deliver(outcome)
        except BaseException as error:  # the thread is the process's reason to be: nothing may end it unseen
            self._deliver(EngineFailed(error))

    def _run_plan(self, plan: PlanColumns, wait_s: float) -> Outcome:
        if plan.epoch != self.newest_epoch:
            return StepDropped(plan.epoch, plan.step)
        self.begun = (plan.epoch, plan.step)
        taken_s = time.perf_counter()
        step = self._executor.begin(plan)
        swap_s = self._swap(step.swaps)
        begun_s = time.perf_counter()
        output, failure = self._compute(step)
        computed_s = time.perf_counter()
        step_s = computed_s - begun_s
        if plan.epoch != self.newest_epoch:
            return StepDropped(plan.epoch, plan.step)
        frame = self._executor.finish(step, output)
        data = encode(frame)
        return StepDone(
            frame=frame,
            data=data,
            num_tokens=len(step.batch.token_ids) if step.batch is not None else 0,
            num_sequences=len(self._executor.table),
            step_s=step_s,
            computed_s=computed_s,
            overhead_s=time.perf_counter() - taken_s - step_s - swap_s,
            wait_s=wait_s if step.is_awaited else None,
            failure=failure,
            num_swapped_blocks=0 if step.swaps is None else len(step.swaps.out) + len(step.swaps.back),
            swap_s=swap_s,
        )

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

    def _compute(self, step: Step) -> tuple[StepOutput, Failure | None]:
        if step.batch is None:
            return StepOutput(self._executor.table.last_token[:_NO_OUTPUT]), None
        try:
            output = self._engine.step(step.batch)
        except EngineBroken:
            raise
        except Exception as error:
            if is_sticky(error):
                raise EngineBroken(f"the device's context is lost: {error}") from error
            failure: Failure = "out_of_memory" if is_out_of_memory(error) else "exception"
            self._log.exception("the step failed; trying its sequences one by one", step=step.number, failure=failure)
        else:
            self._failures_in_a_row = 0
            return output, None
        # Not before the error is gone: it keeps the failed step's memory, which may be what is lacking.
        return self._recover(step.batch, failure), failure

    def _recover(self, batch: StepInput, failure: Failure) -> StepOutput:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise EngineBroken(f"{self._failures_in_a_row} steps in a row failed ({failure})")
        return step_one_by_one(self._engine, batch)
