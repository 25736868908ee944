"""A term of leadership over a fold that the test feeds."""

from collections.abc import Callable

from msgspec import structs

from bench.shard_messages import ready_worker
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.leader import Leader, LeaderPorts
from shared.log.fold import Change, Record
from shared.logs import get_logger
from shared.messages.control import CacheReport, GatewayHeartbeat, WorkerHeartbeat
from shared.messages.pipeline import Done, End, Fence, Reader
from shared.queue_limits import QueueLimits
from tests.log.records import FoldUnderTest

BLOCK_SIZE = 4


def heartbeat(worker: str, epoch: int, num_blocks: int) -> WorkerHeartbeat:
    """An idle worker's."""
    return structs.replace(
        ready_worker(
            worker,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=128,
        ),
        epoch=epoch,
    )


class Term:
    """A leader that has just taken over; what it appends is kept in records, and folded by fold_appended.

    now: its monotonic clock. message_ids: of all that was ever appended. holds: of each record about a request that is
    over, whether it still is. num_plans: plans sent.
    on_bus: gateways that the bus knows. asked: for which gateways it was asked, and how it says no.
    """

    def __init__(
        self, fold: FoldUnderTest, leader: str = "s2", limits: QueueLimits | None = None, now: float = 100.0
    ) -> None:
        self.fold = fold
        self.now = now
        self.records: list[End | Done | Reader] = []
        self.message_ids: list[str] = []
        self.holds: list[Callable[[], bool]] = []
        self.fenced: list[str] = []
        self.on_bus: set[str] = set()
        self.asked: list[tuple[str, Callable[[], None]]] = []
        self.num_plans = 0
        fold.feed(Fence(kind="takeover", leader=leader))
        ports = LeaderPorts(
            send=lambda subject, data: None,
            send_plan=self._send_plan,
            append=self._append,
            append_while=self._append_while,
            fence=self._fence,
            ask_for_gateway=self._ask_for_gateway,
            max_plan_bytes=lambda: 2**20,
        )
        self.leader = Leader(fold, Scheduler(), ports, get_logger(), limits)
        self.leader.start([], self.now)

    def _send_plan(self, subject: str, data: bytes) -> None:
        self.num_plans += 1

    def _append(self, records: list[tuple[End | Done | Reader, str]]) -> None:
        for record, message_id in records:
            self.records.append(record)
            self.message_ids.append(message_id)

    def _append_while(self, record: End | Done | Reader, message_id: str, holds: Callable[[], bool]) -> None:
        assert holds(), "decided a moment ago"
        self.holds.append(holds)
        self._append([(record, message_id)])

    def _fence(self, worker: str, answered: Callable[[bool], None]) -> None:
        self.fenced.append(worker)

    def _ask_for_gateway(self, gateway: str, on_absent: Callable[[], None]) -> None:
        self.asked.append((gateway, on_absent))
        if gateway not in self.on_bus:
            on_absent()

    def join(self, worker: str, num_blocks: int) -> None:
        """A worker comes and reports an empty cache."""
        epoch = self.fold.epoch_of(worker)
        self.leader.on_worker_heartbeat(heartbeat(worker, epoch, num_blocks), self.now)
        self.leader.on_cache_report(CacheReport(worker=worker, epoch=epoch), self.now)

    def hear(self, gateway: str) -> None:
        """A gateway's heartbeat."""
        self.leader.on_gateway_heartbeat(GatewayHeartbeat(gateway=gateway), self.now)

    def feed(self, record: Record) -> Change:
        """Somebody's record is folded."""
        change = self.fold.feed(record)
        self.leader.on_change(change, self.now)
        return change

    def pass_time(
        self, seconds: float, *gateways: str, by_s: float = 0.25, workers: dict[str, int] | None = None
    ) -> None:
        """Ticks, the clocks of the log and of the leader moving alike, while these gateways are heard, and these idle
        workers, given with their numbers of blocks."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            step_s = min(by_s, end - self.now)
            self.now += step_s
            self.fold.now_ns += int(step_s * 1e9)
            for gateway in gateways:
                self.hear(gateway)
            for worker, num_blocks in (workers or {}).items():
                self.leader.on_worker_heartbeat(heartbeat(worker, self.fold.epoch_of(worker), num_blocks), self.now)
            self.tick()

    def tick(self) -> None:
        """A tick at the present time."""
        self.leader.tick(self.now, self.fold.now_ns)

    def fold_appended(self) -> None:
        """What was appended becomes part of the log; what follows from it is appended next time."""
        records, self.records = self.records, []
        for record in records:
            self.feed(record)
