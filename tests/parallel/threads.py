"""Ranks as threads of one process, which meet in memory: for kernels that only an emulator runs here."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from tests.waiting import LIMIT_S

T = TypeVar("T")


class Meeting:
    """Where threads lay down what they have, and take what all have laid down."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: list[Tensor] = [torch.empty(0)] * size
        self._barrier = threading.Barrier(size, timeout=LIMIT_S)

    def exchange(self, rank: int, mine: Tensor) -> list[Tensor]:
        """Every rank's tensor, in their order."""
        self._held[rank] = mine.clone()
        self._barrier.wait()
        held = list(self._held)
        self._barrier.wait()
        return held

    def run(self, work: Callable[["ThreadRank"], T]) -> list[T]:
        """What each rank makes of it, all at the same time."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._run_one, work, rank) for rank in range(self.size)]
            return [future.result() for future in futures]

    def _run_one(self, work: Callable[["ThreadRank"], T], rank: int) -> T:
        try:
            return work(ThreadRank(self, rank))
        except BaseException:
            self._barrier.abort()
            raise


class ThreadRank:
    """See services.worker.models.share.Communicator."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.size = meeting.size
        self._meeting = meeting

    def add_up(self, x: Tensor) -> Tensor:
        """Rounded to x's dtype once, as if by a device."""
        return x.copy_(torch.stack(self._meeting.exchange(self.rank, x.float())).sum(dim=0))

    def gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._meeting.exchange(self.rank, x), dim=1)

    def hand_out(self, x: Tensor) -> None:
        x.copy_(self._meeting.exchange(self.rank, x)[0])

    def smallest(self, number: int) -> int:
        return int(min(self._meeting.exchange(self.rank, torch.tensor(number))))
