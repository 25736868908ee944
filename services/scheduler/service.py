"""The scheduler's process: folds the log, leads if the fold says so, plans the steps of all workers of its shard.

A standby only folds. The leader keeps no state that the log does not have: after a take-over, its own or another's,
everything is rebuilt from the fold, and what the workers' KV memory still holds comes back as prefix-cache hits.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from services.scheduler.config import SchedulerConfig
from services.scheduler.core.leadership import LeaderWatch
from services.scheduler.core.scheduler import Scheduler, SchedulerLimits
from services.scheduler.fencer import Fencer
from services.scheduler.housekeeping import Housekeeper, Retention
from services.scheduler.leader import Leader, LeaderPorts
from services.scheduler.metrics import SchedulerMetrics
from shared import subjects
from shared.bus.appender import BackgroundAppender
from shared.bus.errors import BusError, NoResponders
from shared.bus.nats_log import NatsLog
from shared.bus.receiver import Receiver
from shared.log.fold import Change, Fold
from shared.log.port import LogTooLarge, LogUnavailable, TooFewServers
from shared.messages.codec import encode
from shared.messages.control import (
    CacheReport,
    DetokenizerHeartbeat,
    GatewayHeartbeat,
    LeaderHeartbeat,
    PlanGap,
    WorkerHeartbeat,
)
from shared.messages.pipeline import Fence
from shared.service import Health, ServiceHost, StartError

TICK_S = 0.05
ASK_TIMEOUT_S = 0.4  # below the half second after which is asked again
LATE_S = 0.35
HEARTBEAT_S = 0.2
HEARD_LATELY_S = 1.0
LEAVE_RESERVE_S = 2.0
FULL_SHARE = 0.95
MAX_WORKER_FENCES = 1000


class LostLeadership(RuntimeError):
    """Another scheduler's take-over was folded: this process must start anew."""


class SchedulerService:
    """One scheduler, standby or leader."""

    def __init__(self, host: ServiceHost, config: SchedulerConfig, log: NatsLog) -> None:
        self._host = host
        self._config = config
        self._log = log
        self._logger = host.log
        self.fold = Fold(fencing=config.fencing)
        self._tail = log.tail(self.fold, self._on_change, self._on_reload)
        self._fencer = Fencer(log, self.fold)
        self._appender = BackgroundAppender(log, host.log)
        self._watch = LeaderWatch(self._now())
        self._heartbeats: dict[str, tuple[float, WorkerHeartbeat]] = {}
        self._housekeeper = Housekeeper(
            log, self.fold, Retention(config.log_retention_s), self._fence_keep, log.fill_share, host.log
        )
        self.leader: Leader | None = None
        self._leave_at: float | None = None
        self.num_integrity_problems = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._metrics = SchedulerMetrics(self)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def tail_live(self) -> bool:
        """Whether this process knows the end of the log."""
        return self._tail.live

    @property
    def num_tail_resets(self) -> int:
        """Times that the log's tail was started, the first among them."""
        return self._tail.resets

    @property
    def log_fill(self) -> float:
        """Share of the log's size limit in use."""
        return self._housekeeper.fill

    # ---- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until told to stop; a leader then finishes what runs, for as long as it may."""
        receiver = Receiver(self._host.bus, self._logger)
        shard = self._config.shard
        await receiver.on(subjects.worker_heartbeat(shard), WorkerHeartbeat, self._on_worker_heartbeat)
        await receiver.on(subjects.leader_heartbeat(shard), LeaderHeartbeat, self._on_leader_heartbeat)
        await receiver.on(subjects.detokenizer_heartbeat(shard), DetokenizerHeartbeat, self._on_detokenizer)
        await receiver.on(subjects.GATEWAY_HEARTBEAT, GatewayHeartbeat, self._on_gateway_heartbeat)
        await receiver.on(subjects.cache_report(shard), CacheReport, self._on_cache_report)
        await receiver.on(subjects.plan_gap(shard), PlanGap, self._on_plan_gap)
        await self._host.unless_stopping(self._tail.start())
        self._host.health = self._health
        self._watch.reset(self._now())
        self._background(self._keep_house())
        ticking = asyncio.create_task(self._tick_for_ever())
        try:
            await asyncio.wait({ticking, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            ticking.result()
            await self._appender.drain()
        finally:
            ticking.cancel()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(ticking, *self._tasks, return_exceptions=True)
            await self._tail.stop()

    def _health(self) -> Health:
        leader = self.leader
        details: dict[str, object] = {
            "role": "leader" if leader else "standby",
            "leader": self.fold.leader,
            "log": {"live": self._tail.live, "folded": self.fold.seq, "fill": round(self.log_fill, 4)},
        }
        if leader is not None:
            details["workers"] = {name: link.state.value for name, link in leader.links.items()}
        return Health(self._tail.live, details, [] if self._tail.live else ["log"])

    def _may_stop(self) -> bool:
        """A standby may go at any time; a leader once a standby has taken over, it can plan nothing more, or its time
        is over: what then still runs is in the log, and goes on under the next leader."""
        if not self._host.stopping.is_set():
            return False
        now = self._now()
        if self._leave_at is None:
            self._leave_at = now + max(0.0, self._config.drain_timeout_s - LEAVE_RESERVE_S)
        is_over = now >= self._leave_at or self._host.hurrying.is_set()
        return self.leader is None or not self.leader.can_plan or is_over

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    # ---- clockwork --------------------------------------------------------------------------------------------------

    async def _tick_for_ever(self) -> None:
        beat = float("-inf")
        while not self._may_stop():
            before = self._now()
            await asyncio.sleep(TICK_S)
            now = self._now()
            if now - before > TICK_S + LATE_S or not self._tail.live:
                self._watch.reset(now)
                if self.leader is not None:
                    self.leader.reset_clocks(now, was_deaf=not self._tail.live)
                continue
            if self.leader is None:
                if self._watch.takeover_due(now) and not self._host.stopping.is_set():
                    await self._fencer.append(Fence(kind="takeover", leader=self._host.name))
                    self._watch.reset(self._now())
                continue
            if now - beat >= HEARTBEAT_S:
                beat = now
                self._send_heartbeat()
                # with heartbeats, not ticks: where the log refuses the fence, the leader goes on leading in between
                if len(self.fold.worker_fences) > MAX_WORKER_FENCES:
                    await self._begin_new_term()
                    continue
            self.leader.tick(now, time.time_ns())
        if self.leader is not None:
            self._send_heartbeat()  # it says leaving: a standby need not wait for the silence

    async def _begin_new_term(self) -> None:
        """Take over from itself: every fold forgets its workers' fences with a take-over, and with nothing else, since
        a zombie's rows must not count again."""
        self._logger.info("a new term: many fenced workers are remembered", workers=len(self.fold.worker_fences))
        await self._fencer.append(Fence(kind="takeover", leader=self._host.name))

    def _send_heartbeat(self) -> None:
        assert self.leader is not None
        load = self.leader.load(log_full=self.log_fill > FULL_SHARE)
        message = LeaderHeartbeat(
            shard=self._config.shard,
            leader=self._host.name,
            takeover=self.fold.takeover,
            load=load,
            leaving=self._host.stopping.is_set(),
        )
        self._host.bus.publish(subjects.leader_heartbeat(self._config.shard), encode(message))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self._config.snapshot_interval_s)
            if not self._tail.live:
                continue
            if self.leader is not None:
                self._check_integrity(self.leader)
            try:
                await self._housekeeper.look_at_fill()
                # to a full log nobody can take over: if its leader died, a standby must make room
                if self.leader is not None or self.log_fill > FULL_SHARE:
                    await self._housekeeper.run_once()
            except LogUnavailable as error:
                self._logger.warning("housekeeping failed", error=str(error))

    def _check_integrity(self, leader: Leader) -> None:
        """While nothing runs: wrong bookkeeping shows before it harms a stream."""
        if leader.core.num_running:
            return
        problems = leader.core.check_integrity()
        self.num_integrity_problems = len(problems)
        if problems:
            self._logger.error("the scheduler's state is inconsistent", problems=problems[:10])

    async def _fence_keep(self) -> bool:
        return self.leader is not None and await self._fencer.append(Fence(kind="keep", leader=self._host.name))

    def _fence_worker(self, worker: str, answered: Callable[[bool], None]) -> None:
        async def fence() -> None:
            answered(await self._fencer.append(Fence(kind="worker", leader=self._host.name, worker=worker)))

        self._background(fence())

    def _ask_for_gateway(self, gateway: str, on_absent: Callable[[], None]) -> None:
        async def ask() -> None:
            try:
                await self._host.bus.request(subjects.gateway(gateway), b"", ASK_TIMEOUT_S)
            except NoResponders:
                on_absent()
            except (BusError, TimeoutError):
                pass  # somebody listens, or nothing can be known now

        self._background(ask())

    # ---- what the log says ------------------------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        now = self._now()
        record = change.record
        if isinstance(record, Fence):
            self._fencer.on_folded()
            self._watch.reset(now)
            if record.kind == "takeover":
                self._on_takeover(record.leader, now)
                return
        if self.leader is not None:
            self.leader.on_change(change, now)

    def _on_takeover(self, leader: str, now: float) -> None:
        if leader == self._host.name:
            self._lead(now)
        elif self.leader is not None and self._host.stopping.is_set():
            self._logger.info("handed over", leader=leader)
            self.leader = None
        elif self.leader is not None:
            self._lose(f"{leader} took over")

    def _on_reload(self) -> None:
        if self.leader is not None or self.fold.leader == self._host.name:
            self._lose("the log was trimmed past what this process had folded")

    def _lose(self, why: str) -> None:
        self.leader = None
        self._fail(LostLeadership(why))

    def _lead(self, now: float) -> None:
        self._logger.info("leading", takeover=self.fold.takeover, live_requests=len(self.fold.requests))
        bus = self._host.bus
        ports = LeaderPorts(
            send=bus.publish,
            send_plan=self._send_plan,
            append=self._appender.append,
            append_while=self._appender.append_while,
            fence=self._fence_worker,
            ask_for_gateway=self._ask_for_gateway,
            max_plan_bytes=lambda: bus.max_payload // 2,
        )
        core = Scheduler(SchedulerLimits(watermark=self._config.watermark, prefill_share=self._config.prefill_share))
        self.leader = Leader(self.fold, core, ports, self._logger, self._config.queue_limits)
        lately = [beat for heard, beat in self._heartbeats.values() if now - heard < HEARD_LATELY_S]
        self.leader.start(lately, now)
        self._send_heartbeat()

    def _send_plan(self, subject: str, data: bytes) -> bool:
        if self._config.test_drop_plans and random.random() < self._config.test_drop_plans:
            return False
        return self._host.bus.publish(subject, data)

    # ---- what the bus says ------------------------------------------------------------------------------------------

    def _on_worker_heartbeat(self, heartbeat: WorkerHeartbeat, reply: str) -> None:
        now = self._now()
        if heartbeat.worker not in self._heartbeats:
            self._heartbeats = {name: at for name, at in self._heartbeats.items() if now - at[0] < HEARD_LATELY_S}
        self._heartbeats[heartbeat.worker] = (now, heartbeat)
        if self.leader is not None:
            self.leader.on_worker_heartbeat(heartbeat, now)

    def _on_leader_heartbeat(self, heartbeat: LeaderHeartbeat, reply: str) -> None:
        now = self._now()
        self._watch.on_heartbeat(heartbeat.leader, self.fold.leader, now, leaving=heartbeat.leaving)

    def _on_detokenizer(self, heartbeat: DetokenizerHeartbeat, reply: str) -> None:
        self._housekeeper.retention.on_detokenizer(heartbeat.detokenizer, heartbeat.folded, self._now())

    def _on_gateway_heartbeat(self, heartbeat: GatewayHeartbeat, reply: str) -> None:
        if self.leader is not None:
            self.leader.on_gateway_heartbeat(heartbeat, self._now())

    def _on_cache_report(self, report: CacheReport, reply: str) -> None:
        if self.leader is not None:
            self.leader.on_cache_report(report, self._now())

    def _on_plan_gap(self, gap: PlanGap, reply: str) -> None:
        if self.leader is not None:
            self.leader.on_plan_gap(gap, self._now())


async def serve(host: ServiceHost, config: SchedulerConfig) -> None:
    """Run one scheduler."""
    try:
        opening = NatsLog.open(host.bus, config.shard, config.log_max_bytes, config.nats_replicas)
        log = await host.unless_stopping(opening)
    except TooFewServers as error:
        raise StartError(f"--nats-replicas: {error}") from None
    except LogTooLarge as error:
        raise StartError(f"--log-max-bytes: {error}") from None
    if log is not None:
        await SchedulerService(host, config, log).run()
