"""SIGTERM of one service under load that outlasts the drain: it exits 0, and no stream notices more than a pause."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.control import converse
from deploy.node.control_messages import ProcessStatus, StatusRequest
from shared.bus.client import Bus
from shared.client import EndEvent, TokenbusClient
from shared.messages.pipeline import GenerateRequest
from shared.reading.submission import fix_defaults, submit
from tests.e2e.clients import Clients
from tests.e2e.streams import Answer, all_running, connect, stream
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

DRAIN_S = 3.5
STEP_MS = 5
NUM_TOKENS = 900  # 4.5 s at least
LEFT_TOKENS = 2400  # 12 s at least
ENDLESS_TOKENS = 8000
NUM_STREAMS = 8
SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", str(STEP_MS))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("drain") / "node"
    with RunningNode(folder, *OPTIONS, "--drain-timeout-s", str(DRAIN_S)) as running:
        yield running


def body(num_tokens: int) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": "on and on", "max_tokens": num_tokens, "ignore_eos": True}


async def latecomer(node: RunningNode) -> Answer:
    """A stream over a connection of its own."""
    async with connect(node.url) as client:
        return await stream(client, "/v1/completions", body(NUM_TOKENS))


@pytest.mark.parametrize(
    "name", ["scheduler-0", "worker-0", "detokenizer-0", "tokenizer-0", "gateway-0", "nats-server"]
)
async def test_a_service_told_to_stop_under_load_exits_0_and_streams_go_on(node: RunningNode, name: str) -> None:
    answers: list[Answer] = []
    async with Clients(node.url, NUM_STREAMS, body(NUM_TOKENS), refusals_count=False) as clients:
        await clients.all_running()
        pid = node.signal(name, signal.SIGTERM)
        if name == "gateway-0":
            answers.append(await latecomer(node))
        await until(lambda: node.pids().get(name, pid) != pid, "restart")
    answers += clients.answers
    assert [answer.error for answer in answers if not answer.whole] == []
    assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
    deaths = [line for line in node.output.read_text().splitlines() if line.startswith(f"{name} died")]
    assert len(deaths) == 1 and "exit status 0" in deaths[0]
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node with two of each service."""
    two = [f"--{service}s=2" for service in SERVICES]
    with RunningNode(tmp_path_factory.mktemp("pairs") / "node", *OPTIONS, *two) as running:
        yield running


@pytest.mark.parametrize("service", SERVICES)
async def test_where_a_replica_is_no_client_sees_a_failure(pair: RunningNode, service: str) -> None:
    """Neither those who read nor those who come while one of the two goes and is started again."""
    async with Clients(pair.url, NUM_STREAMS, body(100)) as clients:
        await clients.all_answered()
        name = await leading(pair) if service == "scheduler" else f"{service}-0"
        pid = pair.signal(name, signal.SIGTERM)
        await until(lambda: pair.pids().get(name, pid) != pid, "restart")
        await clients.all_answered()
    assert clients.failures == []
    assert f"{name} died (exit status 0)" in pair.output.read_text()
    assert service != "scheduler" or "handed over" in pair.log(name)
    assert wrongs(await asyncio.to_thread(pair.verify)) == {}


async def leading(node: RunningNode) -> str:
    """The name of the leading scheduler."""
    statuses = await asyncio.to_thread(lambda: list(converse(str(node.folder.root), StatusRequest())))
    (name,) = [each.name for each in statuses if isinstance(each, ProcessStatus) and each.leading]
    return name


async def test_a_stopped_node_leaves_what_takes_too_long_to_its_next_start(tmp_path: Path) -> None:
    """Who reads over HTTP is told when the drain is over; what nobody reads now is finished later."""
    options = (*OPTIONS, "--drain-timeout-s", str(DRAIN_S))
    params = {"max_tokens": LEFT_TOKENS, "ignore_eos": True}
    request = GenerateRequest(v=1, model="smollm2-135m", prompt="on and on", params=params, attach=False)
    with RunningNode(tmp_path / "node", *options) as node:
        bus = await Bus.connect(node.nats, "asker")
        accepted = await submit(bus, fix_defaults(request))
        await bus.close()
        async with connect(node.url) as client:
            (streaming,) = await all_running(client, "/v1/completions", [body(ENDLESS_TOKENS)])
            assert node.process is not None
            node.process.terminate()
            assert await asyncio.to_thread(node.process.wait, LIMIT_S) == 0, node.output.read_text()
            assert '"code": "draining"' in (await streaming).error, "never a silent end"
    with RunningNode(tmp_path / "node", *options) as node:
        async with await TokenbusClient.connect(node.nats) as client:
            events = client.attach(accepted.request_id)
            ends = [event async for event in events if isinstance(event, EndEvent)]
    assert [(end.finish_reason, end.num_tokens) for end in ends] == [("length", LEFT_TOKENS)]
