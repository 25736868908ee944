"""Appends that nobody waits for, but that must not be lost or silent."""

import asyncio

from structlog.typing import FilteringBoundLogger

from shared.log.port import Log, LogFull, LogUnavailable
from shared.messages.codec import encode
from shared.messages.pipeline import Done, End

FULL_RETRY_S = 0.5


class BackgroundAppender:
    """Stores End and Done records in tasks of its own; each list in order, different lists side by side."""

    def __init__(self, log: Log, logger: FilteringBoundLogger) -> None:
        self._log = log
        self._logger = logger
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_failed = 0

    @property
    def num_pending(self) -> int:
        """Lists of records not stored yet."""
        return len(self._tasks)

    def append(self, records: list[tuple[End | Done, str]]) -> None:
        """Store records, each with its message id, retrying; a failure for good is logged and counted."""
        task = asyncio.create_task(self._store(records))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, records: list[tuple[End | Done, str]]) -> None:
        for record, message_id in records:
            try:
                await self._store_one(record, message_id)
            except LogUnavailable as error:
                self.num_failed += 1
                self._logger.error("record not stored", message_id=message_id, error=str(error))
                return

    async def _store_one(self, record: End | Done, message_id: str) -> None:
        data = encode(record)
        while True:
            try:
                await self._log.append("end", data, message_id)
                return
            except LogFull:
                await asyncio.sleep(FULL_RETRY_S)

    async def drain(self) -> None:
        """Wait until everything is stored."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
