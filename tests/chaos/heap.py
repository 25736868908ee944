"""Who owns memory that grows: a heap diff of a running Python process, taken with the load still on."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until

PROBE = Path(__file__).parent / "probe"
ROOT = Path(__file__).parents[2]
TRACE_S = 120.0


@contextlib.contextmanager
def probed_processes(folder: Path) -> Iterator[None]:
    """Processes that start in this context can be asked for a heap diff, which they write to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    added = {"PYTHONPATH": str(PROBE), "TOKENBUS_HEAP_FOLDER": str(folder)}
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


async def heap_diffs(folder: Path, pids: dict[str, int], seconds: float = TRACE_S) -> dict[str, str]:
    """By name: what of the process's Python heap grew in these seconds, the largest owner first."""
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    await asyncio.sleep(seconds)
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    files = {name: folder / f"{pid}.txt" for name, pid in pids.items()}
    with contextlib.suppress(AssertionError):  # then some have not answered, and the text says so
        await until(lambda: all(file.exists() for file in files.values()))
    return {name: _read(file) for name, file in files.items()}


def _read(file: Path) -> str:
    return without_places(file.read_text()) if file.exists() else "no answer"


def without_places(text: str) -> str:
    """Files by where they lie in the project or in Python, wherever that is on this machine."""
    for folder in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
        text = text.replace(f"{folder}/", "")
    return text
