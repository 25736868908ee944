"""Watching a node's log as it grows: who computed what, and when the log says so."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from shared import subjects
from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.bus.receiver import Receiver
from shared.log.fold import Change, Fold
from shared.logs import get_logger
from shared.messages.control import LeaderHeartbeat, ShardLoad
from shared.messages.packed import UINT64, unpack
from shared.messages.pipeline import Fence, Rows
from tests.waiting import until

SECOND_NS = 10**9


@dataclass(slots=True)
class Move:
    """A sequence that lost its worker. Times are the log's, in seconds after the worker's last counted frame."""

    sequence: int
    fenced_s: float
    next_row_s: float


@dataclass(slots=True)
class LogWatch:
    """rows: (log time in ns, worker) of every counted row, by sequence. frames: the same of every counted frame.
    load: as the leader told last."""

    load: ShardLoad = field(default_factory=ShardLoad)
    fold: Fold = field(default_factory=Fold)
    frames: list[tuple[int, str]] = field(default_factory=list)
    rows: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    fences: list[tuple[int, Fence]] = field(default_factory=list)

    def on_change(self, change: Change) -> None:
        """A record was folded."""
        record, now_ns = change.record, self.fold.clock_ns
        if isinstance(record, Fence):
            self.fences.append((now_ns, record))
        elif isinstance(record, Rows) and change.counted:
            self.frames.append((now_ns, record.worker))
            for sequence in unpack(UINT64, record.sequences):
                self.rows.setdefault(sequence, []).append((now_ns, record.worker))

    def on_leader(self, heartbeat: LeaderHeartbeat, reply: str) -> None:
        """The leader's heartbeat."""
        self.load = heartbeat.load

    def workers(self) -> set[str]:
        """Incarnations that have computed a counted row."""
        return {worker for entries in self.rows.values() for _, worker in entries}

    def fence_of(self, worker: str) -> int | None:
        """Log time of the worker's own first fence, None without one."""
        return next((now_ns for now_ns, fence in self.fences if fence.worker == worker), None)

    def moves_from(self, worker: str) -> list[Move]:
        """Sequences that ran at a worker when it was fenced, and have a row since."""
        fenced_ns = self.fence_of(worker)
        assert fenced_ns is not None
        last_ns = max(now_ns for now_ns, each in self.frames if each == worker and now_ns < fenced_ns)
        moves = []
        for sequence, entries in self.rows.items():
            before = [each for now_ns, each in entries if now_ns < fenced_ns]
            after = [now_ns for now_ns, each in entries if now_ns >= fenced_ns and each != worker]
            if before and before[-1] == worker and after:
                fenced_s, next_row_s = ((time_ns - last_ns) / SECOND_NS for time_ns in (fenced_ns, after[0]))
                moves.append(Move(sequence, fenced_s, next_row_s))
        return moves

    async def caught_up(self, num_done: int) -> None:
        """Wait until this many requests have their outcome."""
        await until(lambda: sum(state.done is not None for state in self.fold.requests.values()) >= num_done, "Dones")


@contextlib.asynccontextmanager
async def watching(nats: str) -> AsyncIterator[LogWatch]:
    """Fold a node's log while the context lasts."""
    bus = await Bus.connect(nats, "watch-1")
    watch = LogWatch()
    tail = (await NatsLog.find(bus, "s0")).tail(watch.fold, watch.on_change, lambda: None)
    await tail.start()
    await Receiver(bus, get_logger()).on(subjects.leader_heartbeat("s0"), LeaderHeartbeat, watch.on_leader)
    try:
        yield watch
    finally:
        await tail.stop()
        await bus.close()
