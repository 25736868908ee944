"""The worker as a process of its own: starting, not starting, leaving."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus.client import Bus
from shared.bus.nats_log import NatsLog
from shared.messages.sampling import Sampling
from tests.servers import NatsServer
from tests.service_process import command, start
from tests.waiting import LIMIT_S, until
from tests.worker.stub_leader import StubLeader


@asynccontextmanager
async def leader_of(server: NatsServer) -> AsyncIterator[StubLeader]:
    bus = await Bus.connect(server.url, "stub-leader")
    try:
        leader = StubLeader(bus, await NatsLog.open(bus, "s0"))
        await leader.start()
        yield leader
        await leader.stop()
    finally:
        await bus.close()


@pytest.mark.parametrize("engine", ["fake", "cpu"])
async def test_sigterm_finishes_what_is_planned_and_exits_0(
    nats_server: NatsServer, repository: Path, tmp_path: Path, engine: str
) -> None:
    options = ("--engine", engine, "--nats", nats_server.url, "--num-threads", "1", "--max-model-len", "400")
    async with leader_of(nats_server) as leader:
        process = start(command("worker", repository, *options), tmp_path / "log")
        try:
            await until(lambda: leader.heartbeats, "the first heartbeat")
            beat = leader.heartbeats[0]
            assert (beat.model, beat.model_version, beat.max_model_len) == ("tiny", "1", 400)
            sequences = [
                await leader.ask(number, [5, 6, 7, 8 + number], Sampling(max_tokens=300, seed=number))
                for number in range(4)
            ]
            await until(lambda: all(len(leader.tokens(sequence)) > 5 for sequence in sequences), "some tokens")
            process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(process.wait, LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert status == 0, (tmp_path / "log").read_text()
        assert leader.heartbeats[-1].leaving
        await until(lambda: leader.num_unfolded == 0, "the frame of every plan")
        assert leader.fold.counts["prefix_mismatched"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--engine", "fake", "--model", "absent"), "absent"),
        (("--engine", "fake", "--max-model-len", "513"), "513"),
        (("--engine", "fake", "--kv-cache-memory-bytes", "1000"), "KV blocks"),
        (("--engine", "cpu", "--kv-cache-memory-bytes", "1000"), "max_model_len 512"),
    ],
)
async def test_a_start_that_cannot_be_exits_2_with_the_reason(
    nats_server: NatsServer, repository: Path, options: tuple[str, ...], reason: str
) -> None:
    arguments = [*command("worker", repository, "--nats", nats_server.url), *options]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fake_worker_does_without_torch() -> None:
    code = "import sys, services.worker.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=LIMIT_S).returncode == 0
