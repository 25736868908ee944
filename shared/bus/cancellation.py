"""Keeping a cancellation that library code would swallow."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancellation_kept() -> Iterator[None]:
    """Around awaits of nats-py: raises CancelledError at the end if the task was cancelled meanwhile.

    nats-py drops a cancellation that arrives while it flushes, and asyncio.wait_for before Python 3.12 one that
    arrives together with the result. A task that loops over requests would then never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
