"""The log as its users see it; NATS and memory implement it (shared.bus.nats_log, shared.log.memory)."""

from collections.abc import Callable
from typing import Protocol

from shared.log.fold import Change, Fold


class LogFull(RuntimeError):
    """The log refuses appends for want of space: admission closes until there is room again."""


class LogUnavailable(RuntimeError):
    """The log did not acknowledge within the horizon."""


class TooFewServers(RuntimeError):
    """The log cannot be created: it shall have more replicas than its NATS has servers."""


class LogTooLarge(RuntimeError):
    """The log cannot be created: its server has less space left than the log may need."""


OnRecord = Callable[[Change], None]
OnReload = Callable[[], None]


class Tail(Protocol):
    """Folds the log as it grows. live is False while it may be behind without knowing."""

    @property
    def live(self) -> bool:
        """Whether the newest record that the log has told of is folded and the log was heard of lately."""

    async def start(self) -> None:
        """Load the newest snapshot if the log was trimmed, fold up to the end of the log, and go on folding."""

    async def stop(self) -> None:
        """Stop folding."""


class Log(Protocol):
    """Appending to, tailing, snapshotting and trimming one shard's log."""

    async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
        """Append a req or end record; retried, deduplicated by message_id. Returns its log sequence once stored.

        Raises LogFull when the log has no room, LogUnavailable after horizon_s (seconds).
        """

    def append_frame(self, data: bytes, reply: str) -> bool:
        """Append an out record without waiting: its acknowledgement goes to reply as JSON. False: not even sent."""

    async def append_fence(self, data: bytes, expected: int) -> int | None:
        """One compare-and-set of a fence record against the newest one folded. None: refused, or not known to be
        stored; only the fold tells who leads."""

    def tail(self, fold: Fold, on_record: OnRecord, on_reload: OnReload) -> Tail:
        """A tail that folds into fold and calls on_record after each record, on_reload after loading a snapshot."""

    async def save_snapshot(self, data: bytes, seq: int) -> None:
        """Store the fold's state as of record seq, keeping a few older ones. Raises LogUnavailable."""

    async def load_snapshot(self, oldest: bool = False) -> bytes | None:
        """The newest readable snapshot (or the oldest one from which the log can be folded on), None without any."""

    async def is_trimmed(self) -> bool:
        """Whether the first records are gone."""

    async def trim(self, seq: int) -> None:
        """Forget all records up to seq. Raises LogUnavailable."""
