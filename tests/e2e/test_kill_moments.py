"""kill -9 of a worker while its requests queue, prefill, or lack their last token; of a tokenizer that holds requests.

The chained fake engine draws tokens from the worker's own entropy: a stream is whole and equal to the log only if the
protocol is right.
"""

import asyncio
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.streams import Answer, connect, stream
from tests.e2e.test_takeover import metric
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

NUM_STREAMS = 8
NUM_TOKENS = 6
NUM_SEATS = 4
NUM_WORDS = 500  # many steps' worth of prompt
OPTIONS = (
    *("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "100", "--tokenizers", "2"),
    *("--max-num-seqs", str(NUM_SEATS), "--max-num-batched-tokens", "64"),
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("moments") / "node", *OPTIONS) as running:
        yield running


def begin(client: httpx.AsyncClient, label: str, num_words: int) -> tuple[list[Answer], list[asyncio.Task[Answer]]]:
    answers = [Answer() for _ in range(NUM_STREAMS)]
    tasks = []
    for number, answer in enumerate(answers):
        prompt = " ".join([label, str(number), *map(str, range(num_words))])
        body: dict[str, Any] = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": NUM_TOKENS}
        body |= {"min_tokens": NUM_TOKENS, "ignore_eos": True}
        tasks.append(asyncio.create_task(stream(client, "/v1/completions", body, answer)))
    return answers, tasks


def lacks_one(answers: list[Answer]) -> bool:
    """Whether one of them waits for its last token."""
    return any(len(answer.token_ids) == NUM_TOKENS - 1 for answer in answers)


async def check(node: RunningNode, answers: list[Answer]) -> None:
    assert [answer.error for answer in answers if not answer.whole] == []
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        logged = report["requests"][answer.id.removeprefix("cmpl-")]
        assert logged == logged | {"token_ids": answer.token_ids, "finish_reason": "length"}
        assert len(answer.token_ids) == NUM_TOKENS


async def test_a_worker_killed_while_requests_queue_and_prefill(node: RunningNode) -> None:
    async with connect(node.url) as client:
        answers, tasks = begin(client, "prefill", NUM_WORDS)
        running = waiting = 0.0
        async with asyncio.timeout(LIMIT_S):
            while running + waiting < NUM_STREAMS:
                running = await asyncio.to_thread(metric, node, "scheduler-0", "vllm:num_requests_running")
                waiting = await asyncio.to_thread(metric, node, "scheduler-0", "vllm:num_requests_waiting")
        assert running and waiting, "some prefill, some queue"
        assert not any(answer.token_ids for answer in answers), "no prompt is done"
        pid = node.signal("worker-0")
        await asyncio.gather(*tasks)
    assert node.pids()["worker-0"] != pid
    await check(node, answers)


async def test_a_worker_killed_before_the_last_token(node: RunningNode) -> None:
    async with connect(node.url) as client:
        for number in itertools.count():
            answers, tasks = begin(client, f"last {number}", 1)
            await until(lambda: lacks_one(answers) or all(task.done() for task in tasks), "all but the last token")  # noqa: B023
            if lacks_one(answers):
                break  # else this process looked too late: once more
        pid = node.signal("worker-0")
        await asyncio.gather(*tasks)
    assert node.pids()["worker-0"] != pid
    await check(node, answers)


async def test_a_killed_tokenizers_requests_are_taken_by_another(node: RunningNode) -> None:
    """It is stopped first, so that it holds what it was sent and has done nothing of it."""
    pid = node.signal("tokenizer-0", signal.SIGSTOP)
    async with connect(node.url) as client:
        answers, tasks = begin(client, "taken", 1)
        await until(lambda: any(answer.token_ids for answer in answers), "those that the other one took")
        node.signal("tokenizer-0", signal.SIGKILL)
        await asyncio.gather(*tasks)
    await until(lambda: node.pids().get("tokenizer-0", pid) != pid, "restart")
    await check(node, answers)
    assert len({answer.id for answer in answers}) == NUM_STREAMS
