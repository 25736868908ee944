"""Which kept requests this gateway reads, and whether the log knows it.

A request with keep_s ends once no gateway has read it for that long. The log hears of a gateway, not of its clients:
of the first one that reads a request here, and of the last one that has left it.
"""

from dataclasses import dataclass

# Longer than any request goes on unread, so that a late return to one is told to the log.
REMEMBER_LEFT_S = 120.0


@dataclass(slots=True)
class Reading:
    """One request. told: what the log last heard of this gateway; None if that is uncertain. left_at: when the last
    reader left (seconds of a monotonic clock)."""

    shard: str
    num_readers: int = 0
    told: bool | None = None
    is_telling: bool = False
    left_at: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the log must be told, and nobody does it yet."""
        return not self.is_telling and self.told is not (self.num_readers > 0)


@dataclass(slots=True, frozen=True)
class Notice:
    """A Reader record to be written."""

    request_id: str
    shard: str
    reads: bool


class Readership:
    """All kept requests of this gateway."""

    def __init__(self) -> None:
        self._readings: dict[str, Reading] = {}

    def join(self, request_id: str, shard: str, *, is_owner: bool) -> None:
        """One more client reads. is_owner: the request itself says that this gateway reads it."""
        reading = self._readings.get(request_id)
        if reading is None:
            reading = self._readings[request_id] = Reading(shard, told=is_owner)
        reading.num_readers += 1

    def leave(self, request_id: str, now: float, *, is_done: bool) -> None:
        """A client reads no more. is_done: because the text has ended; then the log need not hear of it."""
        reading = self._readings[request_id]
        reading.num_readers -= 1
        reading.left_at = now
        if is_done and reading.num_readers == 0:
            del self._readings[request_id]

    def disown(self, request_id: str, shard: str, now: float) -> None:
        """The client of a request that was sent from here went before anybody read it."""
        self._readings.setdefault(request_id, Reading(shard, told=True, left_at=now))

    def tell_again(self) -> None:
        """The log may think that this gateway is gone: whatever is read must be told once more."""
        for reading in self._readings.values():
            if reading.num_readers:
                reading.told = None

    def take_due(self) -> list[Notice]:
        """What is to be written now; each until on_told or on_failed."""
        notices = []
        for request_id, reading in self._readings.items():
            if reading.is_due:
                reading.is_telling = True
                notices.append(Notice(request_id, reading.shard, reading.num_readers > 0))
        return notices

    def on_told(self, notice: Notice) -> None:
        """It is in the log."""
        reading = self._readings.get(notice.request_id)
        if reading is not None:
            reading.is_telling = False
            reading.told = notice.reads

    def on_failed(self, notice: Notice) -> None:
        """It is not, and is due again."""
        reading = self._readings.get(notice.request_id)
        if reading is not None:
            reading.is_telling = False

    def forget_left(self, now: float) -> None:
        """Drop the requests that were left long ago."""
        for request_id, reading in list(self._readings.items()):
            if not reading.num_readers and not reading.is_telling and now - reading.left_at > REMEMBER_LEFT_S:
                del self._readings[request_id]
