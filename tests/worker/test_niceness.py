"""What computes lets the event loop go first: threads of the engine are nicer than the loop's, and so are their own."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.worker.native_threads import NICENESS, NativeThread, run_in_native_thread
from services.worker.niceness import step_back
from tests.servers import NatsServer
from tests.service_process import command, start
from tests.waiting import LIMIT_S, until
from tests.worker.test_process import leader_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="niceness belongs to a thread on Linux only")


def niceness() -> int:
    """Of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_a_thread(*steps: int) -> int:
    """Niceness of a fresh thread after steps back."""
    found: list[int] = []

    def work() -> None:
        for step in steps:
            step_back(step)
        found.append(niceness())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_steps_back_alone_and_never_beyond_the_last_place() -> None:
    own = niceness()
    assert in_a_thread() == in_a_thread(0) == own
    assert in_a_thread(3) == min(19, own + 3)
    assert in_a_thread(15, 15) == 19
    assert niceness() == own


async def test_loading_steps_back_and_what_it_starts_inherits_that() -> None:
    own = niceness()
    assert await run_in_native_thread(niceness) == min(19, own + NICENESS)
    assert await run_in_native_thread(in_a_thread) == min(19, own + NICENESS)
    assert niceness() == own


def test_the_engines_thread_steps_back() -> None:
    found: list[int] = []
    thread = NativeThread(lambda: found.append(niceness()), "engine")
    thread.start()
    thread.join()
    assert found == [min(19, niceness() + NICENESS)]


def threads_of(process: "subprocess.Popen[bytes]") -> dict[int, int]:
    """Niceness of each of its threads (proc(5): field 19 of stat)."""
    stats = {int(task.name): (task / "stat").read_text() for task in Path(f"/proc/{process.pid}/task").iterdir()}
    return {thread: int(stat.rpartition(")")[2].split()[16]) for thread, stat in stats.items()}


async def test_in_a_worker_all_that_computes_is_nicer_than_the_loop(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    options = ("--engine", "cpu", "--nats", nats_server.url, "--num-threads", "2", "--max-model-len", "400")
    async with leader_of(nats_server) as leader:
        process = start(command("worker", repository, *options), tmp_path / "log")
        try:
            await until(lambda: leader.heartbeats, "the first heartbeat")
            found = threads_of(process)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, LIMIT_S)
    own = found.pop(process.pid)
    assert own == niceness()
    assert list(found.values()).count(min(19, own + NICENESS)) >= 2, "the engine's thread and its team's"
