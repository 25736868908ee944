"""Threads that may be deep in native code when the process is told to leave.

Nothing in Python can stop such a thread: neither its own pool nor the interpreter's end may wait for it, and an
interpreter that is torn down under it may crash.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from services.worker.niceness import step_back

NICENESS = 5

P = ParamSpec("P")
T = TypeVar("T")


class NativeThread(threading.Thread):
    """A thread that the end of the process does not wait for, and that lets the event loops go first."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)

    def run(self) -> None:
        """Step back, then work."""
        step_back(NICENESS)
        super().run()


async def run_in_native_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """asyncio.to_thread in a NativeThread: neither a cancellation nor the end of the process waits for the work."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # T may well be None

    def run() -> None:
        result, error = None, None
        try:
            result = work(*args, **kwargs)
        except BaseException as raised:  # whatever it is, it belongs to the one who waits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    NativeThread(run, "loading").start()
    return await done


def leave(status: int) -> NoReturn:
    """End the process with this status; at once if a native thread still runs."""
    if any(isinstance(thread, NativeThread) for thread in threading.enumerate()):
        end_at_once(status)
    raise SystemExit(status)


def end_at_once(status: int) -> NoReturn:
    """The end of the process, from any of its threads, also where nobody reads any more what it says."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
