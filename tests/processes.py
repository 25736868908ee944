"""Whether a process runs, and waiting for its end: whoever is killed dies a moment after the signal."""

import time
from collections.abc import Sequence
from pathlib import Path

from tests.waiting import LIMIT_S


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: Sequence[int]) -> list[int]:
    """Those that still run after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if is_alive(pid)]
        time.sleep(0.01)
    return left
