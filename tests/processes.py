"""Whether a process runs, and waiting for its end: whoever is killed dies a moment after the signal."""

import time
from collections.abc import Sequence
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: Sequence[int], timeout_s: float = 20) -> list[int]:
    """Those that still run after the timeout."""
    deadline = time.monotonic() + timeout_s
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if is_alive(pid)]
        time.sleep(0.01)
    return left
