"""A scheduler of a simulated shard: the real leader in a shell of a few lines."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from services.scheduler.core.leadership import LeaderWatch
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.housekeeping import Retention
from services.scheduler.leader import Leader, LeaderPorts
from shared.log import snapshot
from shared.log.fold import Change
from shared.messages.codec import encode
from shared.messages.control import CacheReport, GatewayHeartbeat, PlanGap, WorkerHeartbeat
from shared.messages.pipeline import Fence
from tests.shard.clockwork import now_or_never
from tests.shard.folder import Folder

if TYPE_CHECKING:
    from tests.shard.shard import Shard

TICK_S = 0.05
LATE_S = 0.4
HEARTBEAT_S = 0.2
HEARD_LATELY_S = 1.0
HOUSE_S = 1.0
FENCE_TIMEOUT_S = 0.5
FOLD_TIMEOUT_S = 1.0
FULL_SHARE = 0.95
HALF = 0.5
MAX_PLAN_BYTES = 2048

Answered = Callable[[bool], None]


class SimScheduler(Folder):
    """One scheduler, standby or leader. See services.scheduler.service, fencer and housekeeping."""

    def __init__(self, shard: "Shard", name: str) -> None:
        super().__init__(shard.world, name, shard.log, fencing=shard.scenario.fencing)
        self.shard = shard
        self.leader: Leader | None = None
        self.retention = Retention(HOUSE_S)
        self._heartbeats: dict[str, tuple[float, WorkerHeartbeat]] = {}
        self._watch = LeaderWatch(self.world.now)
        self._ticked = self.world.now
        self._beat = 0.0
        self._trimmed = 0
        self._fences: deque[tuple[Fence, Answered]] = deque()
        self._awaited = -1
        self.catch_up()
        self.every(TICK_S, self._tick)
        if shard.scenario.max_records is not None:
            self.every(HOUSE_S, self._keep_house)

    # ---- clockwork --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.world.now
        late, self._ticked = now - self._ticked > LATE_S, now
        if late or not self.tail_live:
            self._watch.reset(now)
            if self.leader is not None:
                self.leader.reset_clocks(now, was_deaf=not self.tail_live)
        elif self.leader is None:
            if self._watch.is_silent(now):
                self._watch.reset(now)
                self._fence(Fence(kind="takeover", leader=self.name), lambda folded: None)
        else:
            if now - self._beat >= HEARTBEAT_S:
                self._beat = now
                for other in self.shard.schedulers:
                    self.world.send(self, other, other.on_leader, self.name)
            self.leader.tick(now, self.world.unix_ns())

    def _keep_house(self) -> None:
        """What Housekeeper does, without its waits."""
        log = self.log
        if not self.tail_live or (self.leader is None and log.fill < FULL_SHARE):
            return
        image = snapshot.capture(self.fold)
        now_or_never(log.save_snapshot(snapshot.encode(image), image.seq))
        trim = self.retention.trimmable(image.seq, self.world.now, ignore_age=log.fill > HALF)
        if trim <= self._trimmed:
            return

        def kept(is_kept: bool) -> None:
            if is_kept:
                self._trim(trim)

        if self.fold.newest_fence > trim:
            self._trim(trim)
        elif log.fill > HALF:
            self._trim(trim)
            self._keep_fence(lambda is_kept: None)
        else:
            self._keep_fence(kept)

    def _keep_fence(self, kept: Answered) -> None:
        if self.leader is not None:
            self._fence(Fence(kind="keep", leader=self.name), kept)

    def _trim(self, seq: int) -> None:
        self.world.note(self.name, "trims below", seq + 1)
        now_or_never(self.log.trim(seq))
        self._trimmed = seq

    # ---- fences, one at a time --------------------------------------------------------------------------------------

    def _fence(self, fence: Fence, answered: Answered) -> None:
        self._fences.append((fence, answered))
        if len(self._fences) == 1:
            self._send_fence()

    def _send_fence(self) -> None:
        fence, _ = self._fences[0]
        self._awaited = 0
        self.world.to_log(self, self._fence_arrives, fence, self.fold.newest_fence)
        self.world.after(FENCE_TIMEOUT_S, self.deliver, self._on_fence_unanswered, fence)

    def _fence_arrives(self, fence: Fence, expected: int) -> None:
        self.world.from_log(self, self._on_fence_answer, fence, self.log.store_fence(encode(fence), expected))

    def _on_fence_unanswered(self, fence: Fence) -> None:
        if self._fences and self._fences[0][0] is fence and not self._awaited:
            self._fence_done(False)

    def _on_fence_answer(self, fence: Fence, stored: int | None) -> None:
        if not self._fences or self._fences[0][0] is not fence:
            return
        if stored is None:
            self._fence_done(False)
            return
        self._awaited = stored
        self._check_fence()
        self.world.after(FOLD_TIMEOUT_S, self.deliver, self._on_fold_timeout, fence)

    def _on_fold_timeout(self, fence: Fence) -> None:
        if self._fences and self._fences[0][0] is fence:
            self._fence_done(False)

    def _check_fence(self) -> None:
        if self._fences and 0 < self._awaited <= self.fold.newest_fence:
            self._fence_done(True)

    def _fence_done(self, folded: bool) -> None:
        _, answered = self._fences.popleft()
        if self._fences:
            self._send_fence()
        answered(folded)

    # ---- what the log says ------------------------------------------------------------------------------------------

    def on_reload(self) -> None:
        """See Folder."""
        if self.leader is not None or self.fold.leader == self.name:
            self.kill()

    def on_change(self, change: Change) -> None:
        """See Folder."""
        record, now = change.record, self.world.now
        if isinstance(record, Fence):
            self._watch.reset(now)
            if record.kind == "takeover":
                if self.leader is not None:
                    self.leader = None
                    self.kill()
                    return
                if record.leader == self.name:
                    self.lead(now)
                self._check_fence()
                return
            self._check_fence()
        if self.leader is not None:
            self.leader.on_change(change, now)

    def lead(self, now: float) -> None:
        """The fold says that this one leads."""
        self.world.note(self.name, "leads, take-over", self.fold.takeover)
        ports = LeaderPorts(
            send=self._send_plan,
            send_plan=self._send_plan,
            append=self.append,
            append_while=self.append_while,
            fence=lambda worker, answered: self._fence(Fence(kind="worker", leader=self.name, worker=worker), answered),
            ask_for_gateway=self._ask_for_gateway,
            max_plan_bytes=lambda: MAX_PLAN_BYTES,
        )
        self.leader = Leader(self.fold, Scheduler(), ports, self.shard.logger)
        lately = [beat for heard, beat in self._heartbeats.values() if now - heard < HEARD_LATELY_S]
        self.leader.start(lately, now)

    def _send_plan(self, subject: str, data: bytes) -> None:
        worker = self.shard.worker_on(subject)
        if worker is not None:
            self.world.send(self, worker, worker.on_plan, data)

    def _ask_for_gateway(self, gateway: str, on_absent: Callable[[], None]) -> None:
        named = next((each for each in self.shard.gateways if each.name == gateway), None)
        self.world.ask_for(self, named, on_absent)

    # ---- what the bus says ------------------------------------------------------------------------------------------

    def on_leader(self, leader: str) -> None:
        """A leader's heartbeat."""
        self._watch.on_heartbeat(leader, self.fold.leader, self.world.now)

    def on_heartbeat(self, heartbeat: WorkerHeartbeat) -> None:
        """A worker's heartbeat."""
        if self.leader is not None:
            self.leader.on_worker_heartbeat(heartbeat, self.world.now)
        else:
            self._heartbeats[heartbeat.worker] = (self.world.now, heartbeat)

    def on_gateway(self, heartbeat: GatewayHeartbeat) -> None:
        """A gateway's heartbeat."""
        if self.leader is not None:
            self.leader.on_gateway_heartbeat(heartbeat, self.world.now)

    def on_detokenizer(self, detokenizer: str, folded: int) -> None:
        """A detokenizer's heartbeat."""
        self.retention.on_detokenizer(detokenizer, folded, self.world.now)

    def on_report(self, report: CacheReport) -> None:
        """A worker's cache report."""
        if self.leader is not None:
            self.leader.on_cache_report(report, self.world.now)

    def on_gap(self, gap: PlanGap) -> None:
        """A worker misses plans."""
        if self.leader is not None:
            self.leader.on_plan_gap(gap, self.world.now)
