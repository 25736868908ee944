"""A hand-written leader on a real bus: requests in the log, plans two steps ahead, the fold as judge."""

import asyncio
import random

from shared import subjects
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log.fold import Change, Fold
from shared.log.state import sequence_id
from shared.messages.codec import decoder, encode
from shared.messages.control import CacheReport, PlanGap, WorkerHeartbeat
from shared.messages.packed import INT32, pack, unpack_tokens
from shared.messages.pipeline import EpochStart, Fence, Request, Rows
from shared.messages.sampling import Sampling
from tests.waiting import until
from tests.worker.plans import Planned, SmallLeader

PLANS_AHEAD = 2
TICK_S = 0.05


class StubLeader:
    """Drives one worker. drop_plans: share of plans that are lost on their way."""

    def __init__(self, bus: Bus, log: NatsLog, drop_plans: float = 0.0) -> None:
        self.bus = bus
        self.log = log
        self.fold = Fold()
        self.plans = SmallLeader()
        self.worker = ""
        self.heartbeats: list[WorkerHeartbeat] = []
        self.gaps: list[PlanGap] = []
        self.reports: list[CacheReport] = []
        self.paused = False
        self.leaving = False
        self._drop_plans = drop_plans
        self._random = random.Random(1)
        self._window: dict[int, bytes] = {}
        self._folded = 0
        self._sent_s = 0.0
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen to the worker and take over."""
        shard = self.log.shard
        beats, gaps, reports = (decoder(kind) for kind in (WorkerHeartbeat, PlanGap, CacheReport))
        await self.bus.subscribe(subjects.worker_heartbeat(shard), lambda s, r, d, h: self._on_heartbeat(beats(d)))
        await self.bus.subscribe(subjects.plan_gap(shard), lambda s, r, d, h: self._on_gap(gaps(d)))
        await self.bus.subscribe(subjects.cache_report(shard), lambda s, r, d, h: self._on_report(reports(d)))
        await self.log.tail(self.fold, self._on_change, lambda: None).start()
        await self.fence(Fence(kind="takeover", leader="stub"))
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    @property
    def num_unfolded(self) -> int:
        """Plans sent whose frames are not folded."""
        return self.plans.step - self._folded

    async def stop(self) -> None:
        """Stop planning."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    async def fence(self, record: Fence) -> None:
        """Append a fence and open the new epoch with it."""
        seq = await self.log.append_fence(encode(record), self.fold.newest_fence)
        assert seq is not None
        await until(lambda: self.fold.seq >= seq, "the fence in the fold")
        self._open_epoch(seq)

    def _open_epoch(self, epoch: int) -> None:
        self.plans.open_epoch(epoch)
        self._window.clear()
        self._folded = 0
        self.paused = True

    async def ask(self, number: int, prompt: list[int], sampling: Sampling) -> Planned:
        """Put a request in the log and plan it from then on."""
        request = Request(
            request_id=f"{number:032x}",
            model="m",
            model_version="1",
            prompt_token_ids=pack(INT32, prompt),
            sampling=sampling,
            deadline_ns=2**62,
        )
        seq = await self.log.append("req", encode(request), f"req-{number}")
        planned = Planned(sequence_id(seq, 0), prompt, sampling)
        self.plans.add(planned)
        return planned

    def tokens(self, planned: Planned) -> list[int]:
        """What the fold holds of a sequence."""
        state = self.fold.sequences.get(planned.id)
        return [] if state is None else list(state.tokens)

    def is_done(self, planned: Planned) -> bool:
        """Whether the fold has seen its end."""
        state = self.fold.sequences.get(planned.id)
        return state is not None and state.end is not None

    def _on_heartbeat(self, heartbeat: WorkerHeartbeat) -> None:
        self.worker = heartbeat.worker
        self.heartbeats.append(heartbeat)
        self.leaving = self.leaving or heartbeat.leaving
        now_s = asyncio.get_running_loop().time()
        if heartbeat.epoch == self.plans.epoch and not self.paused and now_s - self._sent_s > 0.3:
            self._resend(heartbeat.next_plan)

    def _on_gap(self, gap: PlanGap) -> None:
        self.gaps.append(gap)
        if gap.epoch == self.plans.epoch:
            self._resend(gap.next_plan)

    def _resend(self, step: int) -> None:
        for number in range(step, self.plans.step + 1):
            if number in self._window:
                self._send(self._window[number])

    def _on_report(self, report: CacheReport) -> None:
        self.reports.append(report)
        if report.epoch == self.plans.epoch and self.paused:
            cached = set(unpack_tokens(report.block_ids))
            self.plans.next_block = max(cached, default=-1) + 1
            self.paused = False
            self._pump()

    def _on_change(self, change: Change) -> None:
        record = change.record
        if isinstance(record, Rows) and change.counted:
            self._folded = record.step
            self._window.pop(record.step, None)
            self.plans.update(record)
            self._pump()

    async def _tick(self) -> None:
        while True:
            if self.paused and self.worker:
                self.bus.publish(subjects.plan(self.worker), encode(EpochStart(epoch=self.plans.epoch)))
            self._pump()
            await asyncio.sleep(TICK_S)

    def _pump(self) -> None:
        if self.leaving:
            return
        while not self.paused and self.worker and self.plans.step - self._folded < PLANS_AHEAD:
            plan = self.plans.make_plan()
            if plan is None:
                return
            self._window[plan.step] = encode(plan)
            self._send(self._window[plan.step])

    def _send(self, data: bytes) -> None:
        self._sent_s = asyncio.get_running_loop().time()
        if self._random.random() >= self._drop_plans:
            self.bus.publish(subjects.plan(self.worker), data)
