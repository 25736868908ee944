"""Progress of long work on models: bars on a terminal, a line per stage elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn


@contextmanager
def model_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A function for shared.repository's progress argument: (stage, bytes done, bytes in all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done_bytes: int, total_bytes: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total_bytes or None)
                if not console.is_terminal:
                    console.print(stage)
            bars.update(tasks[stage], completed=done_bytes, total=total_bytes or None)

        yield show
