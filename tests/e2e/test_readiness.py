"""/ready of a real node: busy is not unhealthy, and what does not move is not ready within a stated time.

The bounds here are those of docs/health.md, doubled for machines that do other things as well.
"""

import asyncio
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.e2e.probes import get, health_url, sample
from tests.e2e.streams import all_running, connect
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

MODEL = "smollm2-135m"
INTERVAL_S = 1.0
STOPPED_S = 2 * 3.0
STALLED_S = 2 * 4.0
IDLE_S = 2 * (INTERVAL_S + 4.0)
FAKE = ("--engine", "fake", "--canary-interval-s", str(INTERVAL_S))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with RunningNode(tmp_path_factory.mktemp("readiness") / "node", *FAKE) as running:
        yield running


def missing(node: RunningNode) -> list[str]:
    """What the gateway lacks; empty when it is ready."""
    status, text = get(f"{node.url}/ready")
    body = json.loads(text)
    assert (status == 200) == body["ready"] == (not body["missing"]), text
    found: list[str] = body["missing"]
    return found


async def becomes(node: RunningNode, ready: bool, limit_s: float) -> list[str]:
    """What is missing once the node is ready or not; fails after limit_s."""
    begun = time.monotonic()
    while bool(lacks := await asyncio.to_thread(missing, node)) == ready:
        assert time.monotonic() - begun < limit_s, f"still {'not ready' if ready else 'ready'}: {lacks}"
        await asyncio.sleep(0.05)
    return lacks


async def test_a_stopped_worker_makes_the_node_not_ready_and_a_continued_one_ready_again(node: RunningNode) -> None:
    await becomes(node, True, LIMIT_S)
    node.signal("worker-0", signal.SIGSTOP)
    try:
        begun = time.monotonic()
        await becomes(node, False, STOPPED_S)  # a canary that is sent now is refused even before the heartbeats tell
        while "worker" not in await asyncio.to_thread(missing, node):
            assert time.monotonic() - begun < STOPPED_S
            await asyncio.sleep(0.05)
    finally:
        node.signal("worker-0", signal.SIGCONT)
    await becomes(node, True, LIMIT_S)


async def test_a_log_that_refuses_appends_makes_an_idle_node_not_ready(node: RunningNode) -> None:
    """Every process lives and every heartbeat comes; only a request shows it."""
    await becomes(node, True, LIMIT_S)
    connection = await nats.connect(node.nats)
    stream = connection.jetstream()
    config = (await stream.stream_info("LOG_s0")).config
    await stream.update_stream(config.evolve(max_msg_size=1))
    try:
        assert await becomes(node, False, IDLE_S) == ["canary"]
        health = json.loads((await asyncio.to_thread(get, f"{node.url}/health"))[1])
        state = health["canary"][MODEL]
        assert state["works"] is False and (state["error"] or state["waiting_s"] > 0)
    finally:
        await stream.update_stream(config.evolve(max_msg_size=-1))
        await connection.close()
    await becomes(node, True, LIMIT_S)
    assert wrongs(await asyncio.to_thread(node.verify)) == {}


async def test_canaries_are_no_clients_and_leave_nothing_behind(node: RunningNode) -> None:
    await becomes(node, True, LIMIT_S)
    urls = {
        "gateway": node.url,
        **{each: health_url(node.log(f"{each}-0")) for each in ("tokenizer", "scheduler", "detokenizer")},
    }
    gauges = ("process_open_fds", "tokenbus_bus_subscriptions", "tokenbus_asyncio_tasks")

    async def read(service: str) -> str:
        return (await asyncio.to_thread(get, f"{urls[service]}/metrics"))[1]

    before = {service: await read(service) for service in urls}
    num_sent = sample(before["gateway"], "tokenbus_canaries_total")
    deadline = time.monotonic() + LIMIT_S
    while sample(await read("gateway"), "tokenbus_canaries_total") < num_sent + 5:
        assert time.monotonic() < deadline, "no five canaries"
        await asyncio.sleep(0.1)
    for service, text in before.items():
        for name in gauges:
            # a heartbeat or a scrape under way adds a task for a moment: a leak never comes back down
            deadline = time.monotonic() + LIMIT_S
            while sample(await read(service), name) > sample(text, name):
                assert time.monotonic() < deadline, f"{service} {name} drifts"
    after = await read("gateway")
    samples = re.findall(r"^(vllm:\S+?)(?:\{.*\})? (\S+)$", after, re.MULTILINE)
    assert not [name for name, value in samples if not name.endswith("_created") and float(value) != 0]
    assert sample(after, "tokenbus_http_requests_running") == 0


async def test_200_streams_that_wait_for_a_slow_engine_keep_it_ready(tmp_path: Path) -> None:
    """Four seats, half a second a step: most of them wait for minutes, and so would a canary."""
    slow = ("--fake-step-ms", "500", "--max-num-seqs", "4")
    body = {"model": MODEL, "prompt": "wait", "max_tokens": 500, "ignore_eos": True}
    with RunningNode(tmp_path / "node", *FAKE, *slow) as node:
        async with connect(node.url) as client:
            running = await all_running(client, "/v1/completions", [body] * 4, num_tokens=1)
            waiting = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(196)]
            scheduler = f"{health_url(node.log('scheduler-0'))}/metrics"
            await until_sample(scheduler, "vllm:num_requests_waiting", 196)
            end = time.monotonic() + 3 * (INTERVAL_S + 4.0)
            while time.monotonic() < end:
                assert await asyncio.to_thread(missing, node) == []
                await asyncio.sleep(0.1)
            for task in (*running, *waiting):
                task.cancel()
            await asyncio.gather(*running, *waiting, return_exceptions=True)
        await until_sample(scheduler, "vllm:num_requests_running", 0)


async def until_sample(url: str, name: str, value: float) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (found := sample((await asyncio.to_thread(get, url))[1], name)) != value:
        assert time.monotonic() < deadline, f"{name} is {found}, not {value}"
        await asyncio.sleep(0.05)


async def test_an_engine_that_hangs_makes_the_node_not_ready_until_it_goes_on(tmp_path: Path) -> None:
    """The worker's event loop beats on while its engine's step does not end."""
    hanging = ("--test-hang-step", "40", "--test-hang-s", "9")
    body = {"model": MODEL, "prompt": "hang", "max_tokens": 100, "ignore_eos": True}
    with RunningNode(tmp_path / "node", *FAKE, *hanging) as node:
        async with connect(node.url) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            lacks = await becomes(node, False, STALLED_S)
            assert "progress" in lacks or "worker" in lacks
            await becomes(node, True, LIMIT_S)
            await until(asking.done, "an outcome")
            assert asking.result().status_code in (200, 500)
