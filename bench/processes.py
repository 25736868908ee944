"""What processes have used, from /proc."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
N = TypeVar("N", int, float)
SERVICES = ("gateway", "detokenizer", "tokenizer", "scheduler", "worker", "nats-server")


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process; 0 if it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def peak_resident_bytes(pid: int) -> int:
    """The most that a process has ever held; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(found.split()[1]) * 1024


def by_service(data_dir: Path) -> dict[int, str]:
    """The node's processes: pid -> service, from the pid files of its data folder."""
    found = {}
    for file in sorted((data_dir / "pids").glob("*.pid")):
        name = next((name for name in SERVICES if file.stem.startswith(name)), None)
        if name is not None:
            found[int(file.read_text())] = name
    return found


def by_pids(pids: Iterable[int]) -> dict[int, str]:
    """These processes and all that descend from them: pid -> name of the program. Those that are gone are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: dict[int, str] = {}
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        name = _program(pid)
        if name and pid not in found:
            found[pid] = name
            waiting.extend(children.get(pid, ()))
    return found


class ProcessMeter:
    """CPU by name from its making to read(), and memory. find: pid -> name, asked again at each reading, since a
    process may have children by then; what a new one has used since its start counts."""

    def __init__(self, find: Callable[[], Mapping[int, str]]) -> None:
        self._find = find
        self._known = dict(find())
        self._before = {pid: cpu_s(pid) for pid in self._known}

    @classmethod
    def of_node(cls, data_dir: Path) -> "ProcessMeter":
        """Of a node of ours, by service."""
        return cls(lambda: by_service(data_dir))

    @classmethod
    def of_pids(cls, pids: Iterable[int]) -> "ProcessMeter":
        """Of any processes and their descendants, by program."""
        roots = tuple(pids)
        return cls(lambda: by_pids(roots))

    def restart(self) -> None:
        """Measure from now on."""
        self._known = dict(self._find())
        self._before = {pid: cpu_s(pid) for pid in self._known}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by name. What a process used that has gone meanwhile is lost."""
        self._known |= self._find()
        return self._by_name(lambda pid: max(0.0, cpu_s(pid) - self._before.get(pid, 0.0)))

    def resident(self) -> dict[str, int]:
        """Resident bytes by name."""
        return self._by_name(resident_bytes)

    def peak_resident(self) -> dict[str, int]:
        """The most that the processes ever held, by name."""
        return self._by_name(peak_resident_bytes)

    def _by_name(self, measure: Callable[[int], N]) -> dict[str, N]:
        values: dict[str, N] = {}
        for pid, name in self._known.items():
            value = measure(pid)
            values[name] = values[name] + value if name in values else value
        return dict(sorted(values.items()))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat behind the name: [0] state, [1] parent, [11] and [12] CPU ticks; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _program(pid: int) -> str:
    """The program's name, for Python its module or script; "" if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    if not name.startswith("python"):
        return name
    for index, word in enumerate(words[1:-1], start=1):
        if word == "-m":
            return words[index + 1]
        if not word.startswith("-"):
            return Path(word).name
    return name
