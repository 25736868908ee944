"""Snapshots of the fold, and a log that does not grow for ever (protocol rule 11)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger

from shared.log import snapshot
from shared.log.fold import Fold
from shared.log.port import Log

DETOKENIZER_SILENCE_S = 10.0
FULL_SHARE = 0.5


class Retention:
    """Which part of the log is old enough to go. Times are seconds of a monotonic clock, given by the caller."""

    def __init__(self, retention_s: float) -> None:
        self._retention_s = retention_s
        self._marks: deque[tuple[float, int]] = deque()
        self._old = 0
        self._detokenizers: dict[str, tuple[float, int]] = {}

    def on_detokenizer(self, name: str, folded: int, now: float) -> None:
        """A detokenizer has folded up to here; one that is silent for 10 s starts again from the snapshot."""
        if name not in self._detokenizers:
            self._forget_silent(now)
        self._detokenizers[name] = (now, folded)

    def _forget_silent(self, now: float) -> None:
        self._detokenizers = {
            name: (heard, folded)
            for name, (heard, folded) in self._detokenizers.items()
            if now - heard <= DETOKENIZER_SILENCE_S
        }

    def trimmable(self, snapshot_seq: int, now: float, *, ignore_age: bool) -> int:
        """The newest record that nobody needs any more, given a snapshot of record snapshot_seq."""
        self._marks.append((now, snapshot_seq))
        while self._marks and now - self._marks[0][0] >= self._retention_s:
            self._old = self._marks.popleft()[1]
        self._forget_silent(now)
        limit = snapshot_seq if ignore_age else self._old
        return min([limit, *(folded for _, folded in self._detokenizers.values())])


class Housekeeper:
    """Takes snapshots and trims. fence_keep appends Fence{keep} and waits until it is folded; False if it was not.

    fill: share of the log's max_bytes in use, as of the last look.
    """

    def __init__(
        self,
        log: Log,
        fold: Fold,
        retention: Retention,
        fence_keep: Callable[[], Awaitable[bool]],
        read_fill: Callable[[], Awaitable[float]],
        logger: FilteringBoundLogger,
    ) -> None:
        self._log = log
        self._fold = fold
        self.retention = retention
        self._fence_keep = fence_keep
        self._read_fill = read_fill
        self._logger = logger
        self.fill = 0.0
        self._trimmed = 0

    async def look_at_fill(self) -> None:
        """Refresh fill."""
        self.fill = await self._read_fill()

    async def run_once(self) -> None:
        """One snapshot, then trim what it makes superfluous."""
        loop = asyncio.get_running_loop()
        image = snapshot.capture(self._fold)
        data = await asyncio.to_thread(snapshot.encode, image)
        await self._log.save_snapshot(data, image.seq)
        await self.look_at_fill()
        trim = self.retention.trimmable(image.seq, loop.time(), ignore_age=self.fill > FULL_SHARE)
        if trim <= self._trimmed:
            return
        if self._fold.newest_fence > trim or await self._fence_keep():
            await self._log.trim(trim)
        elif self.fill > FULL_SHARE:
            # a full log takes no fence, and would stay full: make room first
            await self._log.trim(trim)
            await self._fence_keep()
        else:
            return
        self._trimmed = trim
        self._logger.info("log trimmed", snapshot=image.seq, trimmed=trim, snapshot_bytes=len(data))
