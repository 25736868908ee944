"""How a worker process ends when something in it does not: steps and loads that hang, a log that takes nothing."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.log.port import LogFull
from shared.messages.pipeline import Fence
from shared.messages.sampling import Sampling
from tests.servers import NatsServer
from tests.service_process import command, start
from tests.waiting import LIMIT_S, until
from tests.worker.test_process import leader_of

FOR_EVER = ("--test-hang-step", "6", "--test-hang-s", "0")
DRAIN_S = 4.0


class RunningWorker:
    """A worker process, and what it says."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        self.process = start(arguments, log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def exit_status(self) -> int:
        return await asyncio.to_thread(self.process.wait, LIMIT_S)


@asynccontextmanager
async def worker(arguments: list[str], log: Path) -> AsyncIterator[RunningWorker]:
    running = RunningWorker(arguments, log)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def fake_worker(server: NatsServer, repository: Path, *options: str) -> list[str]:
    fixed = ("--engine", "fake", "--nats", server.url, "--drain-timeout-s", str(DRAIN_S))
    return command("worker", repository, *fixed, *options)


@pytest.mark.parametrize("kind", ["sleep", "spin"])
async def test_a_fenced_step_that_never_ends_ends_the_process(
    nats_server: NatsServer, repository: Path, tmp_path: Path, kind: str
) -> None:
    options = (*FOR_EVER, "--test-hang-kind", kind, "--engine-stuck-s", "1")
    async with leader_of(nats_server) as leader:
        async with worker(fake_worker(nats_server, repository, *options), tmp_path / "log") as running:
            await leader.ask(1, [5, 6, 7], Sampling(max_tokens=300))
            await until(lambda: leader.heartbeats and leader.heartbeats[-1].started >= 6, "the step that hangs")
            num_beats = len(leader.heartbeats)
            await until(lambda: len(leader.heartbeats) > num_beats + 3, "heartbeats during the step")
            await leader.fence(Fence(kind="worker", leader="stub", worker=leader.worker))
            assert await running.exit_status() == 1
            assert "step 6 of epoch" in running.log and "still runs 1 s after epoch" in running.log


async def test_a_step_that_keeps_the_gil_ends_the_process(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    """No Python runs in it any more, so it can neither beat nor be told; the log says where it stands."""
    options = (*FOR_EVER, "--test-hang-kind", "gil", "--loop-stuck-s", "1.5")
    async with leader_of(nats_server) as leader:
        async with worker(fake_worker(nats_server, repository, *options), tmp_path / "log") as running:
            await leader.ask(1, [5, 6, 7], Sampling(max_tokens=300))
            assert await running.exit_status() == 1
            assert leader.plans.sequences and leader.heartbeats
            assert "faults.py" in running.log and "in hang" in running.log


@pytest.mark.parametrize("kind", ["sleep", "spin"])
async def test_sigterm_while_a_step_hangs_exits_0_within_the_drain(
    nats_server: NatsServer, repository: Path, tmp_path: Path, kind: str
) -> None:
    options = (*FOR_EVER, "--test-hang-kind", kind)
    async with leader_of(nats_server) as leader:
        async with worker(fake_worker(nats_server, repository, *options), tmp_path / "log") as running:
            await leader.ask(1, [5, 6, 7], Sampling(max_tokens=300))
            await until(lambda: leader.heartbeats and leader.heartbeats[-1].started >= 6, "the step that hangs")
            running.process.send_signal(signal.SIGTERM)
            assert await running.exit_status() == 0
            assert "leaving before all sequences have ended" in running.log
            assert "leaving while a step still runs" in running.log
            assert "drain took too long" not in running.log


@pytest.mark.parametrize("hang", ["time.sleep(3600)", "ctypes.CDLL(None).pause()"])
async def test_sigterm_while_it_loads_exits_0_at_once(
    nats_server: NatsServer, repository: Path, tmp_path: Path, hang: str
) -> None:
    """A load that hangs in Python, or in native code without the GIL: nobody waits for it."""
    code = (
        "import ctypes, time, services.worker.service\n"
        "from services.worker.__main__ import main\n"
        f"services.worker.service.load_engine = lambda *_: {hang}\n"
        "main()\n"
    )
    options = fake_worker(nats_server, repository, "--drain-timeout-s", "300")[3:]
    async with worker([sys.executable, "-c", code, *options], tmp_path / "log") as running:
        await until(lambda: '"connected"' in running.log, "the start of the load")
        running.process.send_signal(signal.SIGTERM)
        assert await running.exit_status() == 0
        assert '"stopped"' in running.log


async def test_sigterm_while_the_real_engine_loads_exits_0(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    """Wherever it is by then: importing torch, reading weights, warming up."""
    arguments = command("worker", repository, "--engine", "cpu", "--nats", nats_server.url)
    for number in range(3):
        async with worker(arguments, tmp_path / f"log-{number}") as running:
            await until(lambda: '"connected"' in running.log, "the start of the load")
            await asyncio.sleep(0.6 * number)
            running.process.send_signal(signal.SIGTERM)
            assert await running.exit_status() == 0, running.log


async def test_a_worker_joins_and_leaves_while_the_log_is_full(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    bus = await Bus.connect(nats_server.url, "filler")
    try:
        log = await NatsLog.open(bus, "s0", max_bytes=16_384)
        async with leader_of(nats_server) as leader:
            await leader.ask(1, [5, 6, 7], Sampling(max_tokens=300))
            with pytest.raises(LogFull):
                for number in range(100):
                    await log.append("req", b"\xc1" * 1000, f"filler-{number}")
            with pytest.raises(LogFull):
                while True:
                    await log.append("req", b"\xc1", "")
            async with worker(fake_worker(nats_server, repository), tmp_path / "log") as running:
                await until(lambda: leader.heartbeats and leader.heartbeats[-1].finished > 0, "a step")
                await until(lambda: "the log refuses frames" in running.log, "the refusal")
                running.process.send_signal(signal.SIGTERM)
                assert await running.exit_status() == 0
                assert "leaving before all sequences have ended" in running.log
    finally:
        await bus.close()


async def test_sigterm_while_the_log_is_not_there_exits_0(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    async with worker(fake_worker(nats_server, repository), tmp_path / "log") as running:
        await until(lambda: "is not there yet" in running.log, "the wait for the log")
        running.process.send_signal(signal.SIGTERM)
        assert await running.exit_status() == 0
