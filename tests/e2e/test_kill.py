"""kill -9 of each service and of nats-server in mid-stream, with tokens that cannot be repeated.

The chained fake engine draws tokens from the worker's own entropy: a stream is whole and equal to the log only if the
protocol is right.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shared.client import TextEvent, TokenbusClient
from tests.e2e.clients import Clients
from tests.e2e.streams import Answer, all_running, connect
from tests.nodes import RunningNode, wrongs
from tests.waiting import until

MODEL = "smollm2-135m"
NUM_STREAMS = 16
NUM_TOKENS = 150
LONG = 600  # tokens of streams of which none may end before all run
CHAINED = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10")


def body(number: int, label: str, **extra: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": f"{label} {number}",
        "max_tokens": NUM_TOKENS,
        "min_tokens": NUM_TOKENS,
        "ignore_eos": True,
        **extra,
    }


async def streams_with(node: RunningNode, label: str, disturb: Callable[[], Awaitable[None]]) -> list[Answer]:
    """Streams without a pause, from before a disturbance until it is over. Requests that are refused before they have
    begun are asked again; all others are among the answers."""
    async with Clients(node.url, NUM_STREAMS, body(0, label), refusals_count=False) as clients:
        await clients.all_running()
        await disturb()
    return clients.answers


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with RunningNode(tmp_path_factory.mktemp("chained") / "node", *CHAINED) as running:
        yield running


@pytest.mark.parametrize("victim", ["worker", "detokenizer", "scheduler", "tokenizer", "nats-server"])
async def test_a_killed_process_loses_and_repeats_nothing(node: RunningNode, victim: str) -> None:
    before = node.pids()
    (name,) = node.pids(victim)

    async def kill_until_it_is_back() -> None:
        os.kill(before[name], signal.SIGKILL)
        await until(lambda: node.pids().get(name, before[name]) != before[name], "restart")

    answers = await streams_with(node, victim, kill_until_it_is_back)
    assert [answer.error for answer in answers if not answer.whole] == []
    assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
    others = {other: pid for other, pid in node.pids().items() if other != name}
    assert others == {other: pid for other, pid in before.items() if other != name}, "another process went too"
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        logged = report["requests"][answer.id.removeprefix("cmpl-")]
        assert logged == logged | {"token_ids": answer.token_ids, "finish_reason": "length"}


async def test_kept_requests_of_a_killed_gateway_can_be_read_on_elsewhere(node: RunningNode) -> None:
    """Their HTTP streams break; with id and position any reader goes on where they ended (rule 15)."""
    before = node.pids()["gateway-0"]
    async with connect(node.url) as client:
        client.headers["X-Tokenbus-Resumable"] = "1"
        bodies = [body(n, "gateway", max_tokens=LONG, min_tokens=LONG) for n in range(NUM_STREAMS)]
        tasks = await all_running(client, "/v1/completions", bodies)
        os.kill(before, signal.SIGKILL)
        answers = await asyncio.gather(*tasks)
    assert all(answer.error and 0 < len(answer.token_ids) < LONG for answer in answers)
    async with await TokenbusClient.connect(node.nats) as client:
        for answer in answers:
            events = client.attach(answer.id.removeprefix("cmpl-"), [len(answer.token_ids)])
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, TextEvent):
                        answer.text += event.text
                        answer.token_ids += event.token_ids
    await until(lambda: node.pids().get("gateway-0", before) != before, "restart")
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        logged = report["requests"][answer.id.removeprefix("cmpl-")]
        assert logged == logged | {"token_ids": answer.token_ids, "finish_reason": "length"}
        assert len(answer.token_ids) == LONG


@pytest.mark.parametrize("fencing", [True, False])
async def test_pauses_near_the_limit_break_streams_only_without_fencing(tmp_path: Path, fencing: bool) -> None:
    """Pauses of 0.95 to 1.45 s of worker and leader, around the second after which they are given up."""
    options = [*CHAINED, "--workers", "2", "--schedulers", "2", "--fake-step-ms", "20"]
    if not fencing:
        options.append("--no-fencing")
    with RunningNode(tmp_path / "node", *options) as node:

        async def blink() -> None:
            for number, pause_s in enumerate((1.02, 1.1, 1.2, 1.05, 1.3, 1.08)):
                for service in ("worker", "scheduler"):
                    names = sorted(node.pids(service))
                    pid = node.pids()[names[number % len(names)]]
                    os.kill(pid, signal.SIGSTOP)
                    await asyncio.sleep(pause_s)
                    os.kill(pid, signal.SIGCONT)
                    await asyncio.sleep(0.2)

        answers = await streams_with(node, "blink", blink)
        report = await asyncio.to_thread(node.verify)
    if fencing:
        assert [answer.error for answer in answers if not answer.whole] == []
        assert wrongs(report) == {}
        assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
    else:
        logged = report["requests"]
        differ = sum(logged.get(a.id.removeprefix("cmpl-"), {}).get("token_ids") != a.token_ids for a in answers)
        assert wrongs(report) or differ, "nothing broke without fences: the test is blind"
