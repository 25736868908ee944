"""A worker of two CPU ranks as a process: it starts, leaves and dies with its ranks, and says why it cannot start."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shared.messages.sampling import Sampling
from tests.servers import NatsServer
from tests.service_process import command, start
from tests.stored_models import store_tiny_model
from tests.waiting import LIMIT_S, until
from tests.worker.test_process import leader_of

TWO_RANKS = ("--engine", "cpu", "--tensor-parallel-size", "2", "--num-threads", "1", "--max-model-len", "400")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    store_tiny_model(folder, "LlamaForCausalLM")
    return folder / "models"


@contextmanager
def worker(repository: Path, server: NatsServer, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = start(command("worker", repository, *TWO_RANKS, "--nats", server.url), log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def rank_of(process: "subprocess.Popen[bytes]") -> psutil.Process:
    (rank,) = psutil.Process(process.pid).children()
    return rank


def meeting_places(folder: Path) -> list[Path]:
    return list(folder.glob("tokenbus-ranks-*"))


async def gone(process: psutil.Process) -> None:
    await until(lambda: not process.is_running(), "the end of the other rank")


async def test_sigterm_is_for_rank_0_which_drains_and_takes_the_others_with_it(
    nats_server: NatsServer, repository: Path, tmp_path: Path
) -> None:
    async with leader_of(nats_server) as leader:
        with worker(repository, nats_server, tmp_path / "log") as process:
            await until(lambda: leader.heartbeats, "the first heartbeat")
            rank = rank_of(process)
            sequence = await leader.ask(1, [5, 6, 7], Sampling(max_tokens=100))
            await until(lambda: len(leader.tokens(sequence)) > 5, "some tokens")
            rank.send_signal(signal.SIGTERM)
            rank.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, LIMIT_S) == 0, (tmp_path / "log").read_text()
            await gone(rank)
        await until(lambda: leader.num_unfolded == 0, "the frame of every plan")
        assert leader.fold.counts["prefix_mismatched"] == 0
    assert "rank of this worker" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("is_busy", [pytest.param(False, marks=pytest.mark.full), True])
async def test_a_rank_that_dies_ends_the_worker_with_a_reason(
    nats_server: NatsServer, repository: Path, tmp_path: Path, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no sequence with an error: they go on elsewhere."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with leader_of(nats_server) as leader:
        with worker(repository, nats_server, tmp_path / "log") as process:
            await until(lambda: leader.heartbeats, "the first heartbeat")
            if is_busy:
                sequence = await leader.ask(1, [5, 6, 7], Sampling(max_tokens=390))
                await until(lambda: len(leader.tokens(sequence)) > 5, "some tokens")
            rank_of(process).kill()
            assert await asyncio.to_thread(process.wait, LIMIT_S) == 1
        if is_busy:
            assert not leader.fold.sequences[sequence.id].end
    assert not meeting_places(tmp_path)
    assert "a rank of this worker has ended" in (tmp_path / "log").read_text()


async def test_the_other_rank_ends_with_a_worker_that_is_killed_and_nothing_is_left(
    nats_server: NatsServer, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with leader_of(nats_server) as leader:
        with worker(repository, nats_server, tmp_path / "log") as process:
            await until(lambda: leader.heartbeats, "the first heartbeat")
            rank = rank_of(process)
            assert meeting_places(tmp_path)
            process.kill()
            await gone(rank)
    assert not meeting_places(tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--engine", "cpu", "--tensor-parallel-size", "3"), "4 attention heads"),
        (("--engine", "fake", "--tensor-parallel-size", "2"), "not fake"),
        (("--engine", "cuda", "--tensor-parallel-size", "2"), "there are 0"),
        ((*TWO_RANKS, "--dtype", "bfloat16", "--cpu-kernels", "avx2"), "tensor_parallel_size is 2"),
    ],
)
async def test_a_start_that_cannot_be_exits_2_with_the_reason(
    nats_server: NatsServer, repository: Path, options: tuple[str, ...], reason: str
) -> None:
    arguments = [*command("worker", repository, "--nats", nats_server.url), *options]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
