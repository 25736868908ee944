"""The log in memory, for simulation and for tests of everything above it."""

import json
from collections.abc import Callable

from shared.log import snapshot
from shared.log.fold import Fold
from shared.log.port import LogFull, OnRecord, OnReload


class MemoryLog:
    """One shard's log in a list. clock: Unix nanoseconds, an argument so that time can be simulated.

    on_ack delivers acknowledgements of frames as (reply subject, JSON bytes), as NATS would. full: set it to have
    appends refused; beyond max_records they are too.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        on_ack: Callable[[str, bytes], None] | None = None,
        max_records: int | None = None,
    ) -> None:
        self._clock = clock
        self._on_ack = on_ack
        self.records: list[tuple[str, bytes, int]] = []
        self.first_seq = 1
        self.full = False
        self._max_records = max_records
        self._message_ids: dict[str, int] = {}
        self._newest_fence = 0
        self._snapshots: list[tuple[int, bytes]] = []
        self._tails: list[MemoryTail] = []

    @property
    def last_seq(self) -> int:
        """Sequence of the newest record; records count from 1 and never again."""
        return self.first_seq + len(self.records) - 1

    @property
    def fill(self) -> float:
        """Share of max_records in use, 0 without a limit."""
        return len(self.records) / self._max_records if self._max_records else 0.0

    @property
    def _refuses(self) -> bool:
        return self.full or self.fill >= 1.0

    async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
        """See Log.append."""
        if message_id in self._message_ids:
            return self._message_ids[message_id]
        if self._refuses:
            raise LogFull("the log refuses appends")
        seq = self._store(kind, data)
        self._message_ids[message_id] = seq
        return seq

    def append_frame(self, data: bytes, reply: str) -> bool:
        """See Log.append_frame."""
        answer: dict[str, object] = (
            {"error": {"err_code": 10077}} if self._refuses else {"seq": self._store("out", data)}
        )
        if self._on_ack is not None:
            self._on_ack(reply, json.dumps(answer).encode())
        return True

    async def append_fence(self, data: bytes, expected: int) -> int | None:
        """See Log.append_fence."""
        if self._refuses or expected != self._newest_fence:
            return None
        self._newest_fence = self._store("fence", data)
        return self._newest_fence

    def _store(self, kind: str, data: bytes) -> int:
        self.records.append((kind, data, self._clock()))
        for tail in list(self._tails):
            tail.catch_up()
        return self.last_seq

    def tail(self, fold: Fold, on_record: OnRecord, on_reload: OnReload) -> "MemoryTail":
        """See Log.tail."""
        return MemoryTail(self, fold, on_record, on_reload)

    def attach(self, tail: "MemoryTail") -> None:
        """Let a tail see every record from now on."""
        self._tails.append(tail)

    def detach(self, tail: "MemoryTail") -> None:
        """The reverse of attach."""
        self._tails.remove(tail)

    async def save_snapshot(self, data: bytes, seq: int) -> None:
        """See Log.save_snapshot."""
        self._snapshots = [*self._snapshots[-2:], (seq, data)]

    async def load_snapshot(self, oldest: bool = False) -> bytes | None:
        """See Log.load_snapshot."""
        return self.newest_snapshot() if not oldest else self._oldest_snapshot()

    def newest_snapshot(self) -> bytes | None:
        """The newest snapshot, without waiting."""
        return self._snapshots[-1][1] if self._snapshots else None

    def _oldest_snapshot(self) -> bytes | None:
        usable = [data for seq, data in self._snapshots if seq >= self.first_seq - 1]
        return usable[0] if usable else None

    async def is_trimmed(self) -> bool:
        """See Log.is_trimmed."""
        return self.first_seq > 1

    async def trim(self, seq: int) -> None:
        """See Log.trim."""
        count = max(0, min(seq, self.last_seq) - self.first_seq + 1)
        del self.records[:count]
        self.first_seq += count


class MemoryTail:
    """A tail that folds each record in the call that appends it."""

    def __init__(self, log: MemoryLog, fold: Fold, on_record: OnRecord, on_reload: OnReload) -> None:
        self._log = log
        self._fold = fold
        self._on_record = on_record
        self._on_reload = on_reload
        self._busy = False

    @property
    def live(self) -> bool:
        """Always: nothing can be lost on the way."""
        return True

    async def start(self) -> None:
        """See Tail.start."""
        self._log.attach(self)
        self.catch_up()

    async def stop(self) -> None:
        """See Tail.stop."""
        self._log.detach(self)

    def catch_up(self) -> None:
        """Fold what is new. A record appended from within on_record is folded after the one at hand."""
        if self._busy:
            return
        self._busy = True
        try:
            if self._fold.seq < self._log.first_seq - 1:
                saved = self._log.newest_snapshot()
                if saved is None:
                    raise LogFull("the log was trimmed and there is no snapshot")
                snapshot.restore(self._fold, saved)
                self._on_reload()
            while self._fold.seq < self._log.last_seq:
                kind, data, clock_ns = self._log.records[self._fold.seq + 1 - self._log.first_seq]
                self._on_record(self._fold.apply(kind, data, self._fold.seq + 1, clock_ns))
        finally:
            self._busy = False
