"""Waiting for a condition instead of for luck."""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 30.0


async def until(condition: Callable[[], object], what: str = "condition", limit_s: float = LIMIT_S) -> None:
    """Return as soon as the condition holds; fail after limit_s seconds."""
    end = asyncio.get_running_loop().time() + limit_s
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"{what} did not come within {limit_s} s")
        await asyncio.sleep(0.01)


def until_now(condition: Callable[[], object], what: str = "condition", limit_s: float = LIMIT_S) -> None:
    """until, for threads."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {limit_s} s")
        time.sleep(0.001)
