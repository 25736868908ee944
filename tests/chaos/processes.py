"""Process ids over time (invariant I6) and resident memory over time, of every process of a stack."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.processes import resident_bytes
from tests.chaos.stack import Stack
from tests.chaos.stalls import FaultRecord

POLL_S = 0.5
MEMORY_EVERY_S = 10.0
MIN_SAMPLES = 12
SLACK_S = 10.0  # a process that was stopped or cut off may end itself as it learns of it (a deposed leader does)


@dataclass(slots=True)
class PidChange:
    """A process was replaced. was_hit: by a fault of ours."""

    name: str
    old: int
    new: int
    at: float
    was_hit: bool


@dataclass(slots=True)
class MemorySeries:
    """Resident memory of one incarnation: seconds of the event loop's clock, bytes."""

    name: str
    pid: int
    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def slope_mb_per_h(self, warm_at: float) -> float | None:
        """Least squares over the samples after warm_at; None with too few of them."""
        pairs = [(t, size) for t, size in zip(self.times, self.sizes, strict=True) if t >= warm_at]
        return slope(pairs) * 3600 / 1e6 if len(pairs) >= MIN_SAMPLES else None


def slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Slope of the straight line with the least squared error; 0 for fewer than two distinct times."""
    count = len(pairs)
    mean_t = sum(t for t, _ in pairs) / count if count else 0.0
    mean_v = sum(v for _, v in pairs) / count if count else 0.0
    spread = sum((t - mean_t) ** 2 for t, _ in pairs)
    return sum((t - mean_t) * (v - mean_v) for t, v in pairs) / spread if spread else 0.0


class ProcessWatch:
    """Samples while `run` runs. changes: every replaced process; memory: by (name, pid)."""

    def __init__(self, stack: Stack, faults: list[FaultRecord]) -> None:
        self.changes: list[PidChange] = []
        self.memory: dict[tuple[str, int], MemorySeries] = {}
        self._stack = stack
        self._faults = faults
        self._pids = stack.pids()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        next_memory = loop.time()
        while True:
            now = loop.time()
            self._look_at_pids(now)
            if now >= next_memory:
                self._look_at_memory(now)
                next_memory += MEMORY_EVERY_S
            await asyncio.sleep(POLL_S)

    def _look_at_pids(self, now: float) -> None:
        for name, pid in self._stack.pids().items():
            old = self._pids.get(name)
            if old is not None and old != pid:
                self.changes.append(PidChange(name, old, pid, now, was_hit(self._faults, name, now)))
            self._pids[name] = pid

    def _look_at_memory(self, now: float) -> None:
        for name, pid in self._stack.pids().items():
            size = resident_bytes(pid)
            if size:
                series = self.memory.setdefault((name, pid), MemorySeries(name, pid))
                series.times.append(now)
                series.sizes.append(size)


def was_hit(faults: Sequence[FaultRecord], name: str, now: float) -> bool:
    """Whether a fault on this process is open, or was until SLACK_S ago."""
    return any(
        fault.name == name and fault.at <= now and (fault.healed_at is None or fault.healed_at + SLACK_S >= now)
        for fault in faults
    )


def slopes(memory: dict[tuple[str, int], MemorySeries], warm_s: float) -> dict[str, float]:
    """MB/h of every incarnation that lived long enough after its own warm-up of warm_s, by `name/pid`."""
    found = {}
    for (name, pid), series in memory.items():
        value = series.slope_mb_per_h(series.times[0] + warm_s)
        if value is not None:
            found[f"{name}/{pid}"] = round(value, 3)
    return found
