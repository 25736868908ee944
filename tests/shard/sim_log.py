"""The log of a simulated shard: the memory log, with what JetStream does beyond it, and every record it ever held."""

from collections.abc import Callable

from shared.log.memory import MemoryLog


class SimLog(MemoryLog):
    """archive: all records since the beginning, as (kind, bytes, clock). on_stored is called after each."""

    def __init__(self, clock: Callable[[], int], max_records: int | None, on_stored: Callable[[], None]) -> None:
        super().__init__(clock, None, max_records)
        self.archive: list[tuple[str, bytes, int]] = []
        self.num_refused = 0
        self._on_stored = on_stored

    def _store(self, kind: str, data: bytes) -> int:
        seq = super()._store(kind, data)
        self.archive.append(self.records[-1])
        self._on_stored()
        return seq

    def store_once(self, kind: str, data: bytes, message_id: str) -> int:
        """append() as it arrives at the server: the record's sequence, an older one for a message id that it knows;
        0 where there is no room."""
        known = self._message_ids.get(message_id)
        if known is not None:
            return known
        if self._refuses:
            self.num_refused += 1
            return 0
        seq = self._message_ids[message_id] = self._store(kind, data)
        return seq

    def store_frame(self, data: bytes) -> int:
        """append_frame() as it arrives; 0 where there is no room."""
        if self._refuses:
            self.num_refused += 1
            return 0
        return self._store("out", data)

    def store_fence(self, data: bytes, expected: int) -> int | None:
        """append_fence() as it arrives. To JetStream a trimmed fence never was; see NatsLog.append_fence."""
        newest = self._newest_fence if self._newest_fence >= self.first_seq else 0
        if self._refuses or (expected if expected >= self.first_seq else 0) != newest:
            return None
        self._newest_fence = self._store("fence", data)
        return self._newest_fence

    async def save_snapshot(self, data: bytes, seq: int) -> None:
        """As in shared.bus.snapshots, a snapshot of an older state, from a scheduler that lags, is not the newest."""
        await super().save_snapshot(data, seq)
        self._snapshots.sort()

    def forget_message_ids(self) -> None:
        """A server that is started again knows the ids of the records that it still has, and no others."""
        self._message_ids = {key: seq for key, seq in self._message_ids.items() if seq >= self.first_seq}
