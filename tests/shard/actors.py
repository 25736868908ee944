"""Scheduler, worker and detokenizer of a simulated shard: the real cores in shells of a few lines."""

import json
import random
from abc import ABC, abstractmethod

import numpy as np

from services.detokenizer.batches import Outgoing
from services.detokenizer.core.desk import Desk
from services.scheduler.core.leadership import LeaderWatch
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.housekeeping import Retention
from services.scheduler.leader import Leader, LeaderPorts
from services.worker.core.frame_window import Frame, FrameWindow
from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor
from services.worker.core.plan_queue import PlanQueue
from services.worker.engine.interface import StepOutput
from shared import subjects
from shared.log import snapshot
from shared.log.fold import Change, Fold
from shared.log.port import LogFull
from shared.logs import get_logger
from shared.messages.codec import decoder, encode
from shared.messages.control import Attach, CacheReport, PlanGap, WorkerHeartbeat
from shared.messages.pipeline import Done, End, EpochStart, Fence, Rows, StepPlan
from tests.detokenizer.bytes_tokenizer import bytes_vocabulary
from tests.shard.clockwork import Process, World, now_or_never
from tests.shard.reader import SimReader

VOCABULARY = bytes_vocabulary()
_decode_plan = decoder(EpochStart | StepPlan)
VOCAB_SIZE = 257
LATE_S = 0.4
HOUSE_S = 1.0
FULL_RETRY_S = 0.5


class Folder(Process, ABC):
    """A process that folds the log."""

    def __init__(self, world: World, name: str, *, fencing: bool) -> None:
        super().__init__(world, name)
        self.fold = Fold(fencing=fencing)

    def catch_up(self) -> None:
        """Fold all that is new."""
        log = self.world.log
        if self.fold.seq < log.first_seq - 1:
            saved = log.newest_snapshot()
            assert saved is not None, "trimmed without a snapshot"
            snapshot.restore(self.fold, saved)
            self.on_reload()
        while self.alive and self.fold.seq < log.last_seq:
            kind, data, clock_ns = log.records[self.fold.seq + 1 - log.first_seq]
            self.on_change(self.fold.apply(kind, data, self.fold.seq + 1, clock_ns))

    @abstractmethod
    def on_reload(self) -> None:
        """The fold was replaced by a snapshot."""

    @abstractmethod
    def on_change(self, change: Change) -> None:
        """What a record did."""

    def append(self, records: list[tuple[End | Done, str]]) -> None:
        """Store records a moment later."""

        def store(first: int) -> None:
            for index in range(first, len(records)):
                record, message_id = records[index]
                try:
                    now_or_never(self.world.log.append("end", encode(record), message_id))
                except LogFull:
                    self.world.after(FULL_RETRY_S, lambda index=index: store(index))  # type: ignore[misc]
                    break
            self.world.appended()

        self.world.after(self.world.latency_s(), lambda: store(0))


class SimScheduler(Folder):
    """One scheduler, standby or leader."""

    def __init__(self, world: World, name: str, shard: "ShardView", *, fencing: bool = True) -> None:
        super().__init__(world, name, fencing=fencing)
        self.shard = shard
        self.leader: Leader | None = None
        self.lost_leadership = False
        self.heartbeats: dict[str, WorkerHeartbeat] = {}
        self._watch = LeaderWatch(world.now)
        self._ticked = world.now
        self._beat = 0.0
        self.retention = Retention(HOUSE_S)
        self._trimmed = 0
        self.catch_up()
        self.every(0.05, self._tick)
        if shard.trims:
            self.every(HOUSE_S, self._keep_house)

    def _tick(self) -> None:
        now = self.world.now
        late, self._ticked = now - self._ticked > LATE_S, now
        if late:
            self._watch.reset(now)
            if self.leader is not None:
                self.leader.reset_clocks(now)
            return
        if self.leader is None:
            if self._watch.is_silent(now):
                self._watch.reset(now)
                self._fence(Fence(kind="takeover", leader=self.name))
            return
        if now - self._beat >= 0.2:
            self._beat = now
            for other in self.shard.schedulers:
                self.world.send(other, lambda other=other: other.on_leader(self.name))  # type: ignore[misc]
        self.leader.tick(now, self.world.unix_ns())

    def on_leader(self, leader: str) -> None:
        """A leader's heartbeat."""
        self._watch.on_heartbeat(leader, self.fold.leader, self.world.now)

    def _fence(self, fence: Fence) -> bool:
        stored = now_or_never(self.world.log.append_fence(encode(fence), self.fold.newest_fence))
        self.world.appended()
        return stored is not None

    def _keep_house(self) -> None:
        """What Housekeeper does, without its waits."""
        log = self.world.log
        if self.leader is None and log.fill < 0.95:
            return
        image = snapshot.capture(self.fold)
        now_or_never(log.save_snapshot(snapshot.encode(image), image.seq))
        trim = self.retention.trimmable(image.seq, self.world.now, ignore_age=log.fill > 0.5)
        if trim <= self._trimmed:
            return
        if self.fold.newest_fence <= trim and self.leader is not None:
            self._fence(Fence(kind="keep", leader=self.name))
        now_or_never(log.trim(trim))
        self._trimmed = trim

    def on_reload(self) -> None:
        """See Folder."""
        if self.leader is not None:
            self.kill()

    def on_change(self, change: Change) -> None:
        """See Folder."""
        record, now = change.record, self.world.now
        if isinstance(record, Fence):
            self._watch.reset(now)
            if record.kind == "takeover":
                if self.leader is not None:
                    self.lost_leadership = True
                    self.leader = None
                    self.kill()
                elif record.leader == self.name:
                    self._lead(now)
                return
        if self.leader is not None:
            self.leader.on_change(change, now)

    def _lead(self, now: float) -> None:
        ports = LeaderPorts(
            send=self._send_plan,
            send_plan=lambda subject, data: self.world.lost() or self._send_plan(subject, data),
            append=self.append,
            fence=lambda worker, answered: answered(self._fence(Fence(kind="worker", leader=self.name, worker=worker))),
            max_plan_bytes=lambda: 2048,
        )
        self.leader = Leader(self.fold, Scheduler(), ports, get_logger())
        self.leader.start(list(self.heartbeats.values()), now)

    def _send_plan(self, subject: str, data: bytes) -> None:
        worker = self.shard.worker(subject)
        if worker is not None:
            self.world.send(worker, lambda: worker.on_plan(data))

    def on_heartbeat(self, heartbeat: WorkerHeartbeat) -> None:
        """A worker's heartbeat."""
        self.heartbeats[heartbeat.worker] = heartbeat
        if self.leader is not None:
            self.leader.on_worker_heartbeat(heartbeat, self.world.now)

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


class SimWorker(Process):
    """One worker with a chained engine: tokens come from entropy that no other process has."""

    def __init__(
        self, world: World, name: str, shard: "ShardView", *, num_blocks: int = 24, step_s: float = 0.01
    ) -> None:
        super().__init__(world, name)
        self.shard = shard
        self.num_blocks = num_blocks
        self.step_s = step_s
        self.leaving = False
        self.queue = PlanQueue()
        self.window = FrameWindow()
        self._executor = PlanExecutor(name, num_blocks, 4, 128, VOCAB_SIZE)
        self._running: PlanColumns | None = None
        self._started = 0
        self._finished = 0
        self._report_pending = False
        self._entropy = random.Random(world.random.getrandbits(64))
        self.num_rows = 0
        self.every(0.05, self._tick)
        self.every(0.2, self._heartbeat)

    def _tick(self) -> None:
        for frame in self.window.take_overdue(self.world.now):
            self._publish(frame)

    def _heartbeat(self) -> None:
        heartbeat = WorkerHeartbeat(
            worker=self.name,
            epoch=self.queue.epoch,
            next_plan=self.queue.next_plan,
            started=self._started,
            finished=self._finished,
            idle=self._running is None and not self.queue.num_queued,
            leaving=self.leaving,
            model="m",
            model_version="1",
            num_blocks=self.num_blocks,
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=128,
        )
        for scheduler in self.shard.schedulers:
            self.world.send(scheduler, lambda s=scheduler: s.on_heartbeat(heartbeat))  # type: ignore[misc]

    def on_plan(self, data: bytes) -> None:
        """EpochStart or StepPlan."""
        message = _decode_plan(data)
        if isinstance(message, EpochStart):
            if self.queue.on_epoch_start(message) == "opened":
                self.window.open_epoch(message.epoch)
                self._started = self._finished = 0
            if self.queue.report_due:
                self.queue.report_due = False
                self._report_pending = True
        elif self.queue.on_plan(message) == "gap":
            gap = PlanGap(worker=self.name, epoch=self.queue.epoch, next_plan=self.queue.next_plan)
            for scheduler in self.shard.schedulers:
                self.world.send(scheduler, lambda s=scheduler: s.on_gap(gap))  # type: ignore[misc]
        self._feed()

    def _feed(self) -> None:
        if self._running is not None:
            return
        if self._report_pending:
            self._report_pending = False
            block_ids, hashes = self._executor.open_epoch()
            report = CacheReport(worker=self.name, epoch=self.queue.epoch, block_ids=block_ids, block_hashes=hashes)
            for scheduler in self.shard.schedulers:
                self.world.send(scheduler, lambda s=scheduler: s.on_report(report))  # type: ignore[misc]
        if self.window.num_free and (plan := self.queue.take()) is not None:
            self._running = plan
            self._started = plan.step
            self.world.after(self.step_s, lambda: self.deliver(lambda: self._finish(plan)))

    def _finish(self, plan: PlanColumns) -> None:
        self._running = None
        step = self._executor.begin(plan)
        num_rows = len(step.batch.sampled) if step.batch is not None else 0
        self.num_rows += num_rows
        tokens = np.array([self._entropy.randrange(97, 123) for _ in range(num_rows)], dtype=np.int32)
        frame = self._executor.finish(step, StepOutput(tokens))
        if plan.epoch == self.queue.epoch:
            self._store(frame)
        elif self.shard.late_frames:
            # a process that was stopped between computing and hearing of its fence
            self.world.log.append_frame(encode(frame), "")
            self.world.appended()
        self._feed()

    def _store(self, frame: Rows) -> None:
        self._finished = frame.step
        self.window.add(frame.step, encode(frame), self.world.now)
        self._publish(Frame(frame.step, encode(frame)))

    def _publish(self, frame: Frame) -> None:
        if self.world.lost():
            return
        epoch = self.window.epoch
        reply = f"{self.name}.{epoch}.{frame.step}.{self.world.random.getrandbits(64)}"

        def acknowledged(data: bytes) -> None:
            seq = json.loads(data).get("seq", 0)
            if not seq:
                self.window.on_refused("full")
            elif not self.world.lost():
                self.world.send(self, lambda: self._on_stored(epoch, frame.step, seq))

        def arrive() -> None:
            self.world.on_ack(reply, acknowledged)
            self.world.log.append_frame(frame.data, reply)
            self.world.appended()

        self.world.after(self.world.latency_s(f"{self.name} to log"), arrive)

    def _on_stored(self, epoch: int, step: int, seq: int) -> None:
        self.window.on_stored(epoch, step, seq, self.world.now)
        self._feed()


class SimDetokenizer(Folder):
    """One detokenizer."""

    def __init__(self, world: World, name: str, shard: "ShardView", *, fencing: bool = True) -> None:
        super().__init__(world, name, fencing=fencing)
        self.shard = shard
        self.desk = Desk(self.fold, lambda request: VOCABULARY)
        self.outgoing = Outgoing(name, self._send, lambda request_id: 1)
        self.catch_up()
        self.every(0.25, self._tick)

    def on_attach(self, attach: Attach) -> None:
        """A reader comes."""
        reader = self.shard.reader
        if reader is not None:
            self.world.send(reader, lambda: reader.on_attached(attach.number, self.name))
        self.outgoing.open(attach.inbox, self.world.now)
        self.desk.attach(attach, self.world.now)
        self._flush()

    def _send(self, inbox: str, data: bytes) -> None:
        reader = self.shard.reader
        if reader is not None and not self.world.lost():
            self.world.send(reader, lambda: reader.on_batch(data))

    def on_reload(self) -> None:
        """See Folder."""
        self.desk.reloaded(self.world.now)
        self._flush()

    def on_change(self, change: Change) -> None:
        """See Folder."""
        self.desk.changed(change.sequences, self.world.now)
        self._flush()

    def _tick(self) -> None:
        self.desk.tick(self.world.now)
        self.desk.forget_retired()
        self._flush()
        self.outgoing.heartbeat(self.desk.attachments.batch_inboxes(), self.world.now)
        folded = self.fold.seq
        for scheduler in self.shard.schedulers:
            self.world.send(scheduler, lambda s=scheduler: s.on_detokenizer(self.name, folded))  # type: ignore[misc]
        reader = self.shard.reader
        if reader is not None:
            self.world.send(reader, lambda: reader.on_detokenizer(self.name))

    def _flush(self) -> None:
        outbox = self.desk.take_outbox()
        if outbox.deltas:
            self.outgoing.send(outbox.deltas, self.world.now)
        for record in outbox.records:
            self.append([record])


class ShardView:
    """Who is there, as the network knows it. trims: whether schedulers take snapshots and trim the log."""

    def __init__(self) -> None:
        self.reader: SimReader | None = None
        self.trims = False
        self.schedulers: list[SimScheduler] = []
        self.workers: list[SimWorker] = []
        self.detokenizers: list[SimDetokenizer] = []
        self.late_frames = False

    def worker(self, subject: str) -> SimWorker | None:
        """The worker that listens on a plan subject."""
        return next((worker for worker in self.workers if subjects.plan(worker.name) == subject), None)
