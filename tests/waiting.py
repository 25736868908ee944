"""Waiting for a condition instead of for luck.

LIMIT_S is for every wait that only exists so that a broken program does not hang its test. It says nothing about speed,
so it may be long: on a machine with much else to do, importing torch alone took more than 30 s. A number of its own
belongs only to a test that is about that time. pytest's own timeout (pyproject.toml) is longer, so that the message of
a wait comes first.
"""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0


async def until(condition: Callable[[], object], what: str = "condition") -> None:
    """Return as soon as the condition holds; fail after LIMIT_S."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"{what} did not come within {LIMIT_S:g} s")
        await asyncio.sleep(0.01)


def until_now(condition: Callable[[], object], what: str = "condition") -> None:
    """until, for threads."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {LIMIT_S:g} s")
        time.sleep(0.001)
