"""A worker that is stopped, or whose engine loops for ever: it is fenced within 3 s, its streams go on within 5 s. A
gateway that is stopped for a while: its streams go on with it.

Both times are read from the log's own timestamps. The strict limits hold in virtual time (tests/scheduler); here a busy
machine gets SLACK_S on top.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.scheduler.core.readership import GATEWAY_SILENCE_S
from tests.e2e.clients import Clients
from tests.e2e.log_watch import LogWatch, watching
from tests.e2e.streams import Answer, all_running, connect, many
from tests.nodes import RunningNode, wrongs
from tests.service_process import start
from tests.waiting import until

FENCED_S = 3.0
MOVED_S = 5.0
SLACK_S = 2.0
NUM_STREAMS = 16
NUM_TOKENS = 200
LONG = 800  # tokens of streams that must outlast a pause
ENGINE = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10")
Wedge = Callable[[], Awaitable[str]]
Record = Callable[[str, object], None]
BODY: dict[str, Any] = {"model": "smollm2-135m", "max_tokens": NUM_TOKENS, "ignore_eos": True}


async def run_streams(node: RunningNode, watch: LogWatch, wedge: Wedge, record_property: Record) -> list[Answer]:
    """Streams without a pause, of which the wedged worker runs some. wedge() returns the worker's name once it is
    wedged."""
    await until(lambda: watch.load.num_workers == 2, "both workers")
    async with Clients(node.url, NUM_STREAMS, bodies("first")[0]) as clients:
        await clients.all_running()
        wedged = await wedge()
        await until(lambda: watch.fence_of(wedged) is not None, "the fence")
    await watch.caught_up(len(clients.answers))
    moves = watch.moves_from(wedged)
    assert moves, "the wedged worker ran nothing: the test is blind"
    fenced_s, moved_s = moves[0].fenced_s, max(move.next_row_s for move in moves)
    record_property("fenced_s", fenced_s)
    record_property("moved_s", moved_s)
    assert fenced_s <= FENCED_S + SLACK_S
    assert moved_s <= MOVED_S + SLACK_S
    return clients.answers


async def check(node: RunningNode, answers: list[Answer], num_tokens: int = NUM_TOKENS) -> None:
    assert [answer.error for answer in answers if not answer.whole] == []
    assert {len(answer.token_ids) for answer in answers} == {num_tokens}
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids


async def test_a_gateway_that_stood_still_for_seconds_has_its_streams(tmp_path: Path) -> None:
    """The leader misses it after 1.5 s; on the bus it still is."""
    with RunningNode(tmp_path / "node", *ENGINE) as node:
        async with connect(node.url) as client:
            tasks = await all_running(
                client, "/v1/completions", [{**each, "max_tokens": LONG} for each in bodies("paused")]
            )
            node.signal("gateway-0", signal.SIGSTOP)
            try:
                await asyncio.sleep(GATEWAY_SILENCE_S + 1.0)
            finally:
                node.signal("gateway-0", signal.SIGCONT)
            answers = list(await asyncio.gather(*tasks))
        await check(node, answers, LONG)


async def test_a_stopped_worker_is_fenced_its_streams_move_and_it_comes_back_as_a_zombie(
    tmp_path: Path, record_property: Record
) -> None:
    with RunningNode(tmp_path / "node", *ENGINE, "--workers", "2") as node:
        async with watching(node.nats) as watch:

            async def wedge() -> str:
                await until(lambda: len(watch.workers()) == 2, "both workers run")
                pid = node.signal("worker-0", signal.SIGSTOP)
                return next(worker for worker in watch.workers() if worker.startswith(f"worker-{pid}-"))

            try:
                answers = await run_streams(node, watch, wedge, record_property)
            finally:
                node.signal("worker-0", signal.SIGCONT)
            again = await many(node.url, "/v1/completions", bodies("again"))
            await check(node, [*answers, *again])


def bodies(label: str) -> list[dict[str, Any]]:
    return [{**BODY, "prompt": f"{label} {number}"} for number in range(NUM_STREAMS)]


@contextlib.asynccontextmanager
async def wedging_worker(node: RunningNode, folder: Path, kind: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """One more worker, whose engine hangs for ever in its hundredth step."""
    options = ("--nats", node.nats, "--test-hang-step", "100", "--test-hang-s", "0", "--test-hang-kind", kind)
    process = start([sys.executable, "-m", "services.worker", *ENGINE, *options], folder / f"{kind}.log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["spin", "gil"])
async def test_a_worker_whose_engine_never_ends_its_step_is_fenced_and_its_streams_move(
    tmp_path: Path, kind: str, record_property: Record
) -> None:
    with RunningNode(tmp_path / "node", *ENGINE) as node:
        async with watching(node.nats) as watch, wedging_worker(node, tmp_path, kind) as process:

            async def wedge() -> str:
                name = f"worker-{process.pid}-"

                def found() -> str:
                    return next((fence.worker for _, fence in watch.fences if fence.worker.startswith(name)), "")

                await until(found, "the fence")
                return found()

            await check(node, await run_streams(node, watch, wedge, record_property))
