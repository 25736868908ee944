"""SIGTERM of one service under load that outlasts the drain: it exits 0, and no stream notices more than a pause."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from shared.bus.client import Bus
from shared.client import EndEvent, TokenbusClient
from shared.messages.pipeline import GenerateRequest
from shared.reading.submission import fix_defaults, submit
from tests.e2e.streams import all_running, connect
from tests.nodes import RunningNode, wrongs
from tests.waiting import until

DRAIN_S = 3.5
STEP_MS = 5
NUM_TOKENS = 900  # 4.5 s at least
NUM_STREAMS = 8
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", str(STEP_MS))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("drain") / "node"
    with RunningNode(folder, *OPTIONS, "--drain-timeout-s", str(DRAIN_S)) as running:
        yield running


def body(number: int) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": f"number {number}", "max_tokens": NUM_TOKENS, "ignore_eos": True}


@pytest.mark.parametrize("name", ["scheduler-0", "worker-0", "detokenizer-0", "tokenizer-0"])
async def test_a_service_told_to_stop_under_load_exits_0_and_streams_go_on(node: RunningNode, name: str) -> None:
    async with connect(node.url) as client:
        tasks = await all_running(client, "/v1/completions", [body(number) for number in range(NUM_STREAMS)])
        pid = node.signal(name, signal.SIGTERM)
        await until(lambda: node.pids().get(name, pid) != pid, "restart", DRAIN_S + 20)
        answers = await asyncio.gather(*tasks)
    assert [answer.error for answer in answers if not answer.whole] == []
    assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
    deaths = [line for line in node.output.read_text().splitlines() if line.startswith(f"{name} died")]
    assert len(deaths) == 1 and "exit status 0" in deaths[0]
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids


async def test_a_stopped_node_leaves_what_takes_too_long_to_its_next_start(tmp_path: Path) -> None:
    options = (*OPTIONS, "--drain-timeout-s", str(DRAIN_S))
    params = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    request = GenerateRequest(v=1, model="smollm2-135m", prompt="on and on", params=params, attach=False)
    with RunningNode(tmp_path / "node", *options) as node:
        bus = await Bus.connect(node.nats, "asker")
        accepted = await submit(bus, fix_defaults(request))
        await bus.close()
        assert node.process is not None
        node.process.terminate()
        assert await asyncio.to_thread(node.process.wait, 30) == 0, node.output.read_text()
    with RunningNode(tmp_path / "node", *options) as node:
        async with await TokenbusClient.connect(node.nats) as client:
            events = client.attach(accepted.request_id)
            ends = [event async for event in events if isinstance(event, EndEvent)]
    assert [(end.finish_reason, end.num_tokens) for end in ends] == [("length", NUM_TOKENS)]
