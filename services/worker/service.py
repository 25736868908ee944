"""The worker: plans from the bus to the engine, frames from the engine to the log.

The event loop decodes, keeps plans and frames in order and beats; the engine's thread computes. A worker keeps no
state worth saving: whoever dies, hangs or falls behind is fenced, and its sequences go on elsewhere from the log.
"""

import asyncio
from functools import partial
from typing import Any

from services.worker.config import WorkerConfig
from services.worker.core.oversize import without_rows
from services.worker.core.plan_executor import PlanExecutor
from services.worker.core.plan_queue import PlanQueue
from services.worker.core.stuck_clock import StuckClock
from services.worker.core.token_costs import TokenCosts
from services.worker.device_metrics import measure_device
from services.worker.engine.interface import Engine
from services.worker.engine_thread import EngineFailed, EngineThread, EpochOpened, Outcome
from services.worker.frame_sender import FrameSender
from services.worker.kernel_build import told_build
from services.worker.loading import load_engine
from services.worker.metrics import WorkerMetrics
from services.worker.native_threads import run_in_native_thread
from services.worker.step_runner import StepDone
from services.worker.watchdog import keep_watch
from shared import subjects
from shared.block_hash import HASH_BYTES
from shared.bus.nats_log import NatsLog
from shared.log.port import Log
from shared.messages.codec import WireError, decoder, encode
from shared.messages.control import CacheReport, PlanGap, WorkerHeartbeat
from shared.messages.pipeline import EpochStart, StepPlan
from shared.service import EndpointCounts, Health, ServiceHost, forget_imports

HEARTBEAT_S = 0.2
TICK_S = 0.05
QUIET_BEFORE_LEAVING_S = 0.5
ENGINE_STOP_S = 2.0
LEAVE_RESERVE_S = 3.0  # of the drain's time, for the step at hand
COMPLAINT_S = 1.0
INT32_BYTES = 4

_decode_plan = decoder(EpochStart | StepPlan)


async def serve(host: ServiceHost, config: WorkerConfig) -> None:
    """Load and warm up the engine, then work until host.stopping is set and everything planned is in the log."""
    loading: dict[str, object] = {"state": "loading", "model": config.model}
    host.health = lambda: Health(False, loading, ["model"])
    around_build = partial(told_build, host.log, loading)
    engine = await host.unless_stopping(run_in_native_thread(load_engine, config, around_build))
    if engine is None:
        return
    measure_device(engine)
    warming: dict[str, object] = {"state": "warming up", "model": engine.model, "device": engine.device}
    host.health = lambda: Health(False, warming, ["model"])
    # Only from here: importing large libraries may keep the GIL for long.
    watching = asyncio.create_task(keep_watch(config.loop_stuck_s))
    try:
        await host.unless_stopping(run_in_native_thread(engine.warm_up))
        forget_imports()  # the engine's, too: a look at all of torch keeps the GIL, and so the engine, for 70 ms
        log = await host.unless_stopping(NatsLog.find(host.bus, config.shard))
        if log is not None:
            await Worker(host, config, engine, log, WorkerMetrics()).run()
    finally:
        watching.cancel()


class EngineStuck(RuntimeError):
    """A step does not end although its epoch is over: nothing but the end of the process ends it."""


class Worker:
    """One worker incarnation on one engine."""

    def __init__(
        self, host: ServiceHost, config: WorkerConfig, engine: Engine, log: Log, metrics: WorkerMetrics
    ) -> None:
        self.name = host.name
        self.queue = PlanQueue()
        self._host = host
        self._bus = host.bus
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        executor = PlanExecutor(
            self.name,
            engine.num_blocks,
            engine.block_size,
            engine.max_model_len,
            engine.vocab_size,
            engine.num_swap_slots,
        )
        self._thread = EngineThread(
            engine,
            executor,
            self._deliver,
            host.log,
        )
        self._costs = TokenCosts(engine.block_size)
        self._stuck = StuckClock(config.engine_stuck_s)
        self._num_submitted = 0
        self._opening = 0
        self._finished = 0
        self._leaving = False
        self._next_complaint_s = 0.0
        self._plan_counts = EndpointCounts()
        self.frames = FrameSender(
            host.bus, log, metrics, host.log, self._feed, self._count_malformed, config.test_drop_frames
        )
        self.window = self.frames.window

    # ---- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve plans until the host stops; raises what ended the engine."""
        self._thread.start()
        await self.frames.start()
        await self._bus.subscribe(subjects.plan(self.name), self.on_plan)
        self._bus.reconnect_hooks.append(self.on_reconnected)
        self._host.add_stats("plan", subjects.plan(self.name), lambda: self._plan_counts)
        self._host.health = self._health
        engine = self._engine
        self._host.log.info(
            "ready", model=engine.model, device=engine.device, kernels=engine.kernels, epoch=self.queue.epoch
        )
        beating = self._loop.create_task(self._beat())
        stopping = self._loop.create_task(self._host.stopping.wait())
        try:
            ends: set[asyncio.Future[Any]] = {beating, stopping, self._failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not self._failed.done() and not beating.done():
                await self._drain(beating)
            for ended in (self._failed, beating):
                if ended.done():
                    ended.result()
        finally:
            beating.cancel()
            stopping.cancel()
        if not await asyncio.to_thread(self._thread.stop, ENGINE_STOP_S):
            self._host.log.warning("leaving while a step still runs", step=self._thread.at_hand)

    async def _beat(self) -> None:
        """Heartbeats and whatever is overdue; the engine's steps never hold this up."""
        next_beat_s = 0.0
        while True:
            now_s = self._loop.time()
            if now_s >= next_beat_s:
                next_beat_s = now_s + HEARTBEAT_S
                self._send_heartbeat()
            self.frames.send_overdue()
            if self._stuck.is_over(now_s, self._opening):
                epoch, step = self._thread.at_hand
                raise EngineStuck(
                    f"step {step} of epoch {epoch} still runs {self._stuck.limit_s:g} s after epoch {self._opening} "
                    f"was announced, {self._thread.busy_s:.1f} s in all"
                )
            await asyncio.sleep(TICK_S)

    async def _drain(self, beating: "asyncio.Task[None]") -> None:
        """Leave: what runs is finished and stored, and nothing new comes once the leader has heard of it.

        What takes longer than the drain may is left to other workers: the log has it.
        """
        self._leaving = True
        self._send_heartbeat()
        quiet_since_s = self._loop.time()
        leave_at_s = quiet_since_s + max(0.0, self._config.drain_timeout_s - LEAVE_RESERVE_S)
        while self._loop.time() - quiet_since_s < QUIET_BEFORE_LEAVING_S:
            if not self._is_idle or self.window.num_outstanding:
                quiet_since_s = self._loop.time()
            if self._failed.done() or beating.done():
                return
            if self._loop.time() >= leave_at_s or self._host.hurrying.is_set():
                self._host.log.warning("leaving before all sequences have ended; they go on elsewhere")
                return
            await asyncio.sleep(TICK_S)

    # ---- from the bus -----------------------------------------------------------------------------------------------

    def on_plan(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        """EpochStart or a part of a StepPlan from the leader."""
        self._plan_counts.num_requests += 1
        try:
            message = _decode_plan(data)
        except WireError as error:
            self._plan_counts.num_errors += 1
            self._count_malformed(str(error))
            return
        if isinstance(message, EpochStart):
            self._on_epoch_start(message)
        else:
            self._on_step_plan(message)
        self._feed()

    def _on_epoch_start(self, message: EpochStart) -> None:
        verdict = self.queue.on_epoch_start(message)
        if verdict == "opened":
            self.window.open_epoch(message.epoch)
            self._finished = 0
            self._metrics.num_epochs += 1
            self._host.log.info("epoch", epoch=message.epoch)
        elif verdict == "stale_epoch":
            self._metrics.messages_dropped[verdict] += 1
        if self.queue.report_due:
            self.queue.report_due = False
            if self._opening != message.epoch:
                self._opening = message.epoch
                self._thread.submit_epoch(message.epoch)

    def _on_step_plan(self, part: StepPlan) -> None:
        verdict = self.queue.on_plan(part)
        if verdict == "taken":
            return
        if verdict == "malformed":
            self._count_malformed("columns or parts of a plan do not fit each other")
            return
        self._metrics.messages_dropped[verdict] += 1
        if verdict == "gap":
            gap = PlanGap(worker=self.name, epoch=self.queue.epoch, next_plan=self.queue.next_plan)
            self._bus.publish(subjects.plan_gap(self._config.shard), encode(gap))

    def on_reconnected(self) -> None:
        """NATS is back: what was on its way may be lost."""
        self._send_heartbeat()
        self.frames.send_all()

    # ---- from the engine --------------------------------------------------------------------------------------------

    def _deliver(self, outcome: Outcome) -> None:
        """Called in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self.on_outcome, outcome)
        except RuntimeError:
            # The loop is closed: the process ends, after a drain that this step has outlasted.
            self._host.log.warning("a step ended too late")

    def on_outcome(self, outcome: Outcome) -> None:
        """What the engine's thread says of its next task. An error in here ends the process, as in any handler."""
        try:
            self._take_in(outcome)
        except BaseException as error:  # the engine's own may be any
            if not self._failed.done():
                self._failed.set_exception(error)

    def _take_in(self, outcome: Outcome) -> None:
        if isinstance(outcome, EngineFailed):
            raise outcome.error
        if isinstance(outcome, EpochOpened):
            self._on_epoch_opened(outcome)
        else:
            self._num_submitted -= 1
            if isinstance(outcome, StepDone) and outcome.frame.epoch == self.queue.epoch:
                self._on_step_done(outcome)
        self._feed()

    def _on_epoch_opened(self, opened: EpochOpened) -> None:
        if opened.epoch != self.queue.epoch:
            return
        self._opening = 0
        num_blocks = self._bus.max_payload // 2 // (INT32_BYTES + HASH_BYTES)  # what is not told of is just no cache
        report = CacheReport(
            worker=self.name,
            epoch=opened.epoch,
            block_ids=opened.block_ids[: num_blocks * INT32_BYTES],
            block_hashes=opened.block_hashes[: num_blocks * HASH_BYTES],
        )
        self._send_heartbeat()
        self._bus.publish(subjects.cache_report(self._config.shard), encode(report))

    def _on_step_done(self, done: StepDone) -> None:
        frame, data = done.frame, done.data
        if len(data) > self._bus.max_payload:
            frame = without_rows(frame, f"the output of one step takes {len(data)} bytes, more than a message may")
            data = encode(frame)
        self._finished = frame.step
        self.frames.send(frame.step, data, done.computed_s)
        metrics = self._metrics
        metrics.num_frames += 1
        metrics.num_rows += len(frame.positions) // 4
        metrics.num_row_errors += len(frame.errors)
        metrics.iteration_tokens.observe(done.num_tokens)
        metrics.step_seconds.observe(done.step_s)
        metrics.num_swapped_blocks += done.num_swapped_blocks
        self._costs.observe_step(done.num_tokens, len(frame.positions) // INT32_BYTES, done.step_s)
        self._costs.observe_swap(done.num_swapped_blocks, done.swap_s)
        metrics.overhead_seconds.observe(done.overhead_s)
        metrics.num_sequences = done.num_sequences
        if done.failure is not None:
            metrics.steps_failed[done.failure] += 1
        if done.wait_s is not None:
            metrics.wait_seconds.observe(done.wait_s)

    # ---- to engine and bus ------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Hand plans to the engine while their frames would find room."""
        while self._num_submitted < self.window.num_free:
            plan = self.queue.take()
            if plan is None:
                return
            self._num_submitted += 1
            self._thread.submit_plan(plan)

    @property
    def _is_idle(self) -> bool:
        """No step runs and none is queued."""
        return self._num_submitted == 0 and self.queue.num_queued == 0

    def _send_heartbeat(self) -> None:
        engine, config = self._engine, self._config
        begun_epoch, begun_step = self._thread.begun
        heartbeat = WorkerHeartbeat(
            worker=self.name,
            epoch=self.queue.epoch,
            next_plan=self.queue.next_plan,
            started=begun_step if begun_epoch == self.queue.epoch else 0,
            finished=self._finished,
            idle=self._is_idle,
            leaving=self._leaving,
            model=engine.model,
            model_version=engine.model_version,
            num_blocks=engine.num_blocks,
            block_size=engine.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=engine.max_model_len,
            enable_prefix_caching=config.enable_prefix_caching,
            num_swap_slots=engine.num_swap_slots,
            swap_us=self._costs.swap_us,
            compute_us=self._costs.compute_us,
        )
        self._bus.publish(subjects.worker_heartbeat(config.shard), encode(heartbeat))

    # ---- what others see --------------------------------------------------------------------------------------------

    def _count_malformed(self, detail: str) -> None:
        self._metrics.messages_dropped["malformed"] += 1
        now_s = self._loop.time()
        if now_s >= self._next_complaint_s:
            self._next_complaint_s = now_s + COMPLAINT_S
            self._host.log.warning("malformed message dropped", detail=detail)

    def _health(self) -> Health:
        is_stuck = self._thread.busy_s > self._config.engine_stuck_s
        state = "stuck" if is_stuck else "opening an epoch" if self._opening else "serving"
        if self.queue.epoch == 0:
            state = "waiting for a leader"
        details: dict[str, object] = {
            "state": "leaving" if self._leaving else state,
            "device": self._engine.device,
            "kernels": self._engine.kernels,
            "model": self._engine.model,
            "model_version": self._engine.model_version,
            "num_blocks": self._engine.num_blocks,
            "epoch": self.queue.epoch,
            "log": self.window.refusal or "ok",
            "frames_outstanding": self.window.num_outstanding,
        }
        lacks = [
            *(["log"] if self.window.refusal is not None else []),
            *(["engine"] if is_stuck or self._failed.done() else []),
            *(["scheduler"] if self.queue.epoch == 0 or self._opening else []),
        ]
        return Health(not lacks, details, lacks)
