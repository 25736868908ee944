"""What scheduler and detokenizer have in common: a fold of the log, and records that must get into it."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from shared.log import snapshot
from shared.log.fold import Change, Fold
from shared.messages.codec import encode
from shared.messages.pipeline import Done, End, Reader
from tests.shard.clockwork import Process, World
from tests.shard.sim_log import SimLog

ATTEMPT_S = 0.55
TAIL_SILENCE_S = 0.8

Stored = Callable[[], None]


class Storing(Process):
    """A process that appends records until it knows that they are stored, as NatsLog and BackgroundAppender do."""

    def __init__(self, world: World, name: str, log: SimLog) -> None:
        super().__init__(world, name)
        self.log = log
        self._num_stores = 0
        self._pending: set[int] = set()

    def append(self, records: "list[tuple[End | Done | Reader, str]]") -> None:
        """Store records in order."""
        if records:
            (record, message_id), *rest = records
            self.store("end", encode(record), message_id, lambda: self.append(rest))

    def append_while(self, record: End | Done | Reader, message_id: str, holds: Callable[[], bool]) -> None:
        """Store a record, unless it holds no more before the log has it."""
        self.store("end", encode(record), message_id, lambda: None, holds)

    def store(
        self, kind: str, data: bytes, message_id: str, stored: Stored, holds: Callable[[], bool] = lambda: True
    ) -> None:
        """Store one record, however long it takes; stored is called once it is known to be."""
        self._num_stores += 1
        self._pending.add(self._num_stores)

        def attempt(number: int) -> None:
            if number in self._pending and holds():
                self.world.to_log(self, self._arrive, number, kind, data, message_id, stored)
                self.world.after(ATTEMPT_S, self.deliver, attempt, number)

        attempt(self._num_stores)

    def _arrive(self, number: int, kind: str, data: bytes, message_id: str, stored: Stored) -> None:
        if self.log.store_once(kind, data, message_id):
            self.world.from_log(self, self._on_stored, number, stored)

    def _on_stored(self, number: int, stored: Stored) -> None:
        if number in self._pending:
            self._pending.remove(number)
            stored()


class Folder(Storing, ABC):
    """A process that folds the log."""

    def __init__(self, world: World, name: str, log: SimLog, *, fencing: bool) -> None:
        super().__init__(world, name, log)
        self.fold = Fold(fencing=fencing)
        self._is_told = False
        self.lag_s = 0.0

    def tell(self) -> None:
        """There is something new in the log: it comes a moment later, with whatever follows it until then."""
        if not self._is_told:
            self._is_told = True
            self.world.after(self.world.latency_s() + self.lag_s, self._come)

    def _come(self) -> None:
        wait_s = max(self.cut_until, self.world.stalled_until) - self.world.now
        if wait_s > 0:
            self.world.after(wait_s + self.world.latency_s(), self._come)
        else:
            self.deliver(self._take)

    def _take(self) -> None:
        self._is_told = False
        self.catch_up()

    def lag(self, lag_s: float, seconds: float) -> None:
        """For a while, records come this much later."""
        self.world.note("lag", self.name, f"{lag_s:.2f} s for {seconds:.2f} s")
        self.world.disturbed(seconds)
        self.lag_s = lag_s
        self.world.after(seconds, setattr, self, "lag_s", 0.0)

    @property
    def tail_live(self) -> bool:
        """Whether it knows the end of the log, as far as it can tell."""
        return self.deaf_s <= TAIL_SILENCE_S

    def catch_up(self) -> None:
        """Fold all that is new."""
        log, fold = self.log, self.fold
        if fold.seq < log.first_seq - 1:
            saved = log.newest_snapshot()
            assert saved is not None, "trimmed without a snapshot"
            snapshot.restore(fold, saved)
            self.on_reload()
        while self.alive and fold.seq < log.last_seq:
            kind, data, clock_ns = log.records[fold.seq + 1 - log.first_seq]
            self.on_change(fold.apply(kind, data, fold.seq + 1, clock_ns))

    @abstractmethod
    def on_reload(self) -> None:
        """The fold was replaced by a snapshot."""

    @abstractmethod
    def on_change(self, change: Change) -> None:
        """What a record did."""
