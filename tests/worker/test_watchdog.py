"""The watchdog over the event loop, in processes of its own: it ends them."""

import subprocess
import sys

import pytest

from tests.waiting import LIMIT_S

PROGRAM = """
import asyncio, time
from services.worker.watchdog import keep_watch

async def main():
    watching = asyncio.create_task(keep_watch({limit_s}))
    for _ in range({num_turns}):
        await asyncio.sleep(0)
        {turn}
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    time.sleep({after_s})
    print("alive")

asyncio.run(main())
"""


def run(limit_s: float, turn: str, num_turns: int = 1, after_s: float = 0.0) -> "subprocess.CompletedProcess[str]":
    code = PROGRAM.format(limit_s=limit_s, turn=turn, num_turns=num_turns, after_s=after_s)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_loop_that_stands_still_ends_the_process_which_says_where() -> None:
    done = run(0.5, f"time.sleep({10 * LIMIT_S})")
    assert (done.returncode, done.stdout) == (1, "")
    assert "in main" in done.stderr


def test_a_loop_that_turns_lives_longer_than_the_limit() -> None:
    done = run(3.0, "await asyncio.sleep(0.01)", num_turns=350)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize(("limit_s", "after_s"), [(0, 0.0), (0.5, 1.0)])
def test_no_limit_no_watch_and_none_once_it_is_cancelled(limit_s: float, after_s: float) -> None:
    done = run(limit_s, "time.sleep(0.2)", after_s=after_s)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
