"""Appends that nobody waits for, but that must not be lost or silent."""

import asyncio
from collections.abc import Callable, Coroutine

from structlog.typing import FilteringBoundLogger

from shared.log.port import Log, LogFull, LogUnavailable
from shared.messages.codec import encode
from shared.messages.pipeline import Done, End, Reader

RETRY_S = 0.5
HORIZON_S = 60.0
DRAIN_LIMIT_S = 2.0

Record = End | Done | Reader


class BackgroundAppender:
    """Stores End, Done and Reader records in tasks of its own; each list in order, different lists side by side."""

    def __init__(self, log: Log, logger: FilteringBoundLogger) -> None:
        self._log = log
        self._logger = logger
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_pending(self) -> int:
        """Lists of records not stored yet."""
        return len(self._tasks)

    def append(self, records: list[tuple[Record, str]]) -> None:
        """Store records, each with its message id, however long the log is away: this process decides each of them only
        once, and while it lives nobody else may. A copy too many does no harm (rules 6 and 7)."""
        self._begin(self._store_all(records))

    def append_while(self, record: Record, message_id: str, holds: Callable[[], bool]) -> None:
        """Store a record, unless it holds no more before the log has taken it. It may be stored all the same if it was
        on its way; whoever decides that it holds again appends it again."""
        self._begin(self._store(record, message_id, holds, horizon_s=0.0))

    def _begin(self, storing: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(storing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store_all(self, records: list[tuple[Record, str]]) -> None:
        for record, message_id in records:
            await self._store(record, message_id, lambda: True, HORIZON_S)

    async def _store(self, record: Record, message_id: str, holds: Callable[[], bool], horizon_s: float) -> None:
        data = encode(record)
        complain = self._logger.warning
        while holds():
            try:
                await self._log.append("end", data, message_id, horizon_s)
                return
            except LogFull:
                self._logger.debug("the log is full", message_id=message_id)
            except LogUnavailable as error:
                complain("record not stored yet", message_id=message_id, error=str(error))
                complain = self._logger.debug
            await asyncio.sleep(RETRY_S)
        self._logger.info("record withdrawn before the log had it", message_id=message_id)

    async def drain(self, limit_s: float = DRAIN_LIMIT_S) -> None:
        """Wait until everything is stored; where the log stays away, no longer than limit_s.

        Nothing is lost then, only late. Each record here follows from the log, and whoever folds it next finds it
        again: deadlines, silent gateways, readers, rejections and verdicts the next leader, stop strings and outcomes
        any detokenizer. What a client has asked for (a request, a cancel) is never stored in the background.
        """
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._logger.warning("the log is away; records are left to those who fold it next", lists=len(self._tasks))
            await asyncio.wait(set(self._tasks))
