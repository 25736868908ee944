"""What processes have used, from /proc."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SERVICES = ("gateway", "detokenizer", "tokenizer", "scheduler", "worker", "nats-server")


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def by_service(data_dir: Path) -> dict[int, str]:
    """The node's processes: pid -> service, from the pid files of its data folder."""
    found = {}
    for file in sorted((data_dir / "pids").glob("*.pid")):
        name = next((name for name in SERVICES if file.stem.startswith(name)), None)
        if name is not None:
            found[int(file.read_text())] = name
    return found


class CpuMeter:
    """CPU seconds by service between start and read."""

    def __init__(self, data_dir: Path) -> None:
        self._pids = by_service(data_dir)
        self._before = {pid: cpu_s(pid) for pid in self._pids}

    def read(self) -> dict[str, float]:
        """CPU seconds that each service has used since the meter was made."""
        used: dict[str, float] = {}
        for pid, name in self._pids.items():
            used[name] = used.get(name, 0.0) + cpu_s(pid) - self._before[pid]
        return used

    def resident(self) -> dict[str, int]:
        """Resident bytes by service."""
        held: dict[str, int] = {}
        for pid, name in self._pids.items():
            held[name] = held.get(name, 0) + resident_bytes(pid)
        return held
