"""Faults of the engine on a whole node: rows that are NaN, steps without memory, steps that never end, kill -9 of the
real model's worker in mid-decode."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.streams import Answer, all_running, connect, many
from tests.e2e.test_kill import CHAINED, MODEL, NUM_STREAMS, NUM_TOKENS, body, streams_with
from tests.nodes import RunningNode, wrongs
from tests.service_process import start
from tests.waiting import LIMIT_S, until

FENCED_S = 0.8  # no sequence goes on elsewhere before its worker was silent for a second, less a heartbeat


async def check_log(node: RunningNode, answers: list[Answer]) -> None:
    """What clients read is what the log says, whole or not."""
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        if answer.id:
            logged = report["requests"][answer.id.removeprefix("cmpl-")]
            assert logged["token_ids"][: len(answer.token_ids)] == answer.token_ids
            assert (logged["finish_reason"] == "length") == answer.whole


def code_of(answer: Answer) -> str:
    """The error code that a stream ended with; before its first token that is an HTTP answer."""
    error = json.loads(answer.error)
    code: str = error.get("error", error)["code"]
    return code


async def test_nan_rows_fail_their_own_requests_alone(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", *CHAINED, "--workers", "2", "--test-nan-share", "0.01") as node:
        before = node.pids()
        answers = await many(node.url, "/v1/completions", [body(n, "nan") for n in range(NUM_STREAMS)])
        failed = [answer for answer in answers if not answer.whole]
        assert failed, "no row failed: the test shows nothing"
        assert {code_of(answer) for answer in failed} == {"engine_error"}
        assert {len(answer.token_ids) for answer in answers if answer.whole} <= {NUM_TOKENS}
        await check_log(node, answers)
        assert node.pids() == before


async def test_steps_without_memory_fail_at_most_the_one_request(tmp_path: Path) -> None:
    """A worker that finds none for several sequences in turn ends itself, and they go on elsewhere."""
    with RunningNode(tmp_path / "node", *CHAINED, "--workers", "2", "--test-oom-share", "0.05") as node:
        before = {name: pid for name, pid in node.pids().items() if not name.startswith("worker")}
        answers = await many(node.url, "/v1/completions", [body(n, "memory") for n in range(NUM_STREAMS)])
        assert {code_of(answer) for answer in answers if not answer.whole} <= {"engine_error"}
        assert all("not enough memory" in answer.error for answer in answers if not answer.whole)
        assert {len(answer.token_ids) for answer in answers if answer.whole} == {NUM_TOKENS}
        assert any("out_of_memory" in node.log(name) for name in ("worker-0", "worker-1"))
        await check_log(node, answers)
        assert {name: node.pids().get(name) for name in before} == before, "another process went too"


@contextmanager
def joined_worker(node: RunningNode, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that joins the node from elsewhere, and that nobody starts again."""
    command = [sys.executable, "-m", "services.worker", "--nats", node.nats, *CHAINED, *options]
    process = start(command, log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("kind", "words"), [("spin", "still runs 2 s after epoch"), ("gil", "in hang")])
async def test_streams_of_a_stuck_worker_move_and_it_ends_itself(tmp_path: Path, kind: str, words: str) -> None:
    """With the GIL free it is fenced for lack of progress, and ends when it has not come to its new epoch; with the GIL
    held it is fenced for its silence, and its watchdog ends it."""
    log = tmp_path / "stuck.log"
    hanging = ("--test-hang-step", "60", "--test-hang-s", "0", "--test-hang-kind", kind)
    with RunningNode(tmp_path / "node", *CHAINED) as node:
        before = node.pids()
        with joined_worker(node, log, *hanging, "--engine-stuck-s", "2", "--loop-stuck-s", "5") as stuck:
            await until(lambda: " epoch " in log.read_text(), "the second worker")

            async def its_end() -> None:
                assert await asyncio.to_thread(stuck.wait, LIMIT_S) == 1

            answers = await streams_with(node, "stuck", its_end)
            assert [answer.error for answer in answers if not answer.whole] == []
            assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
            assert words in log.read_text()
        await check_log(node, answers)
        assert node.pids() == before


PROMPTS = [
    "The capital of France is",
    "Water boils when",
    "def fibonacci(n):",
    "Once upon a time there was a",
    "The three primary colours are",
    "To make bread you need",
]
REAL = ("--workers", "2", "--dtype", "float32", "--num-threads", "1", "--max-model-len", "256")


def longest_gap_s(answer: Answer) -> float:
    """The longest time between two tokens."""
    return max(later - sooner for sooner, later in pairwise(answer.arrivals_s))


def real(number: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": PROMPTS[number],
        "max_tokens": NUM_TOKENS,
        "min_tokens": NUM_TOKENS,
        "temperature": 0,
    }


@pytest.mark.full
@pytest.mark.timeout(600)  # two real engines on two cores, perhaps with company
@pytest.mark.parametrize("victim", ["worker-0", "worker-1"])
async def test_the_real_model_goes_on_with_the_same_text_after_kill_9(tmp_path: Path, victim: str) -> None:
    """Greedy in float32: what the other worker computes from the log is what the dead one would have said."""
    with RunningNode(tmp_path / "node", *REAL) as node:
        before = node.pids()
        async with connect(node.url) as client:
            bodies = [real(number) for number in range(len(PROMPTS))]
            tasks = await all_running(client, "/v1/completions", bodies, num_tokens=15)
            os.kill(before[victim], signal.SIGKILL)
            disturbed = list(await asyncio.gather(*tasks))
        assert [answer.error for answer in disturbed if not answer.whole] == []
        assert max(map(longest_gap_s, disturbed)) > FENCED_S, "nobody ran on the victim: the test shows nothing"
        await until(lambda: node.pids().get(victim, before[victim]) != before[victim], "restart")
        undisturbed = await many(node.url, "/v1/completions", bodies)
        assert [answer.text for answer in disturbed] == [answer.text for answer in undisturbed]
        assert [answer.token_ids for answer in disturbed] == [answer.token_ids for answer in undisturbed]
        assert {len(answer.token_ids) for answer in disturbed} == {NUM_TOKENS}
        await check_log(node, [*disturbed, *undisturbed])
        others = {name: pid for name, pid in before.items() if name != victim}
        assert {name: node.pids()[name] for name in others} == others
