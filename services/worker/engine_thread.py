"""The one thread that owns the engine and all state of sequences; the event loop stays free for heartbeats and bus.

The loop submits tasks, the thread answers each with exactly one outcome, in order. Outcomes are handed over with
`deliver`, which must be safe to call from another thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from structlog.typing import FilteringBoundLogger

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor
from services.worker.engine.interface import Engine
from services.worker.native_threads import NativeThread
from services.worker.step_runner import StepDone, StepDropped, StepRunner


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


class _Computed:
    """A task: a step has been computed."""


Outcome = StepDone | StepDropped | EpochOpened | EngineFailed


class EngineThread:
    """begun: (epoch, step) of the newest step begun; at_hand: of the oldest that has not ended, or that ended last.
    newest_epoch: set by the loop; older plans are dropped."""

    def __init__(
        self,
        engine: Engine,
        executor: PlanExecutor,
        deliver: Callable[[Outcome], None],
        log: FilteringBoundLogger,
    ) -> None:
        self.begun = self.at_hand = (0, 0)
        self.newest_epoch = 0
        self._executor = executor
        self._deliver = deliver
        self._busy_since_s: float | None = None
        self._tasks: SimpleQueue[PlanColumns | int | _Computed | None] = SimpleQueue()
        self._runner = StepRunner(engine, executor, log, lambda: self._tasks.put(_Computed()))
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
                task = self._next_task()
                now_s = time.perf_counter()
                if task is None:
                    return self._finish_all()
                if isinstance(task, int):
                    self._finish_all()
                    self._busy_since_s = now_s
                    opened = EpochOpened(task, *self._executor.open_epoch())
                    self._busy_since_s = None
                    self._deliver(opened)
                elif isinstance(task, PlanColumns):
                    self._take(task, 0.0 if len(self._runner) else now_s - waiting_since_s)
                while self._runner.is_first_computed or self._runner.is_full:
                    self._finish_first()
        except BaseException as error:  # the thread is the process's reason to be: nothing may end it unseen
            self._deliver(EngineFailed(error))
        finally:
            self._runner.close()

    def _next_task(self) -> PlanColumns | int | _Computed | None:
        """Waits for it. A step that runs is watched only where the next plan does not come soon."""
        if self._runner.runs_unwatched:
            try:
                return self._tasks.get(timeout=self._runner.patience_s)
            except Empty:
                self._runner.watch()
        return self._tasks.get()

    def _take(self, plan: PlanColumns, wait_s: float) -> None:
        if plan.epoch != self.newest_epoch:
            self._finish_all()
            self._deliver(StepDropped(plan.epoch, plan.step))
            return
        self.begun = (plan.epoch, plan.step)
        self._note_what_runs()
        while not self._runner.start(plan, wait_s):
            self._finish_first()
            self._note_what_runs()

    def _finish_all(self) -> None:
        while len(self._runner):
            self._finish_first()

    def _finish_first(self) -> None:
        outcome = self._runner.finish_first(lambda: self.newest_epoch)
        self._busy_since_s = None
        if len(self._runner):
            self._note_what_runs()
        self._deliver(outcome)

    def _note_what_runs(self) -> None:
        """A step is begun, or the one before it has ended."""
        if self._busy_since_s is None:
            self._busy_since_s = time.perf_counter()
            self.at_hand = self._runner.first or self.begun
