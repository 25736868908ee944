"""Fences, one at a time, each a compare-and-set on the newest fence that this process has folded (rule 2)."""

import asyncio

from shared.log.fold import Fold
from shared.log.port import Log
from shared.messages.codec import encode
from shared.messages.pipeline import Fence

FOLD_TIMEOUT_S = 1.0


class Fencer:
    """Appends fences. on_folded must be called after each folded fence record."""

    def __init__(self, log: Log, fold: Fold) -> None:
        self._log = log
        self._fold = fold
        self._lock = asyncio.Lock()
        self._folded = asyncio.Event()

    def on_folded(self) -> None:
        """The fold holds a new fence."""
        self._folded.set()

    async def append(self, fence: Fence) -> bool:
        """Whether the fence is stored and folded. False says nothing about the log: only the fold decides."""
        async with self._lock:
            stored = await self._log.append_fence(encode(fence), self._fold.newest_fence)
            if stored is None:
                return False
            try:
                async with asyncio.timeout(FOLD_TIMEOUT_S):
                    while self._fold.newest_fence < stored:
                        self._folded.clear()
                        await self._folded.wait()
            except TimeoutError:
                return False
            return True
