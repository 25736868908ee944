"""What an operator sees of a node: probes, metrics, the NATS service API, traces, logs."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from tests.e2e.probes import get, health_url, probe
from tests.nodes import RunningNode
from tests.waiting import LIMIT_S

SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET_PROMPT = "the quick brown fox of observability"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("observed") / "node"
    with RunningNode(folder, "--engine", "fake", "--log-level", "debug", "--log-format", "json") as running:
        body = {"model": "smollm2-135m", "prompt": SECRET_PROMPT, "max_tokens": 8, "ignore_eos": True}
        answer = httpx.post(f"{running.url}/v1/completions", json=body, headers={"traceparent": TRACE}, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        yield running


def log_lines(node: RunningNode, service: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.log(f"{service}-0").splitlines() if line.startswith("{")]


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_answers_its_probes(node: RunningNode, service: str) -> None:
    url = health_url(node.log(f"{service}-0"))
    assert get(f"{url}/live")[0] == 200
    status, text = get(f"{url}/ready")
    assert status == 200
    health = json.loads(get(f"{url}/health")[1])
    assert json.loads(text)["ready"] is True and health
    details = json.dumps(health)
    expected = {
        "worker": "device",
        "scheduler": "log",
        "detokenizer": "log",
        "tokenizer": "models",
        "gateway": "models",
    }
    assert expected[service] in details


def test_metrics_have_vllms_names_where_it_has_one(node: RunningNode) -> None:
    scheduler, gateway = probe(node, "scheduler-0", "/metrics"), get(f"{node.url}/metrics")[1]
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert re.search(rf"^{name} ", scheduler, re.MULTILINE), name
    assert re.search(r"^tokenbus_scheduler_integrity_problems 0", scheduler, re.MULTILINE)
    for service in ("scheduler", "detokenizer"):
        text = probe(node, f"{service}-0", "/metrics")
        assert re.search(r"^tokenbus_log_tail_resets_total [1-9]", text, re.MULTILINE)
    histograms = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
    for name in histograms:
        assert re.search(rf"^vllm:{name}_count\S* [1-9]", gateway, re.MULTILINE), name
    assert re.search(r"^vllm:generation_tokens_total\S* 8", gateway, re.MULTILINE)


async def test_the_nats_service_api_finds_every_service(node: RunningNode) -> None:
    connection = await nats.connect(node.nats)
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.publish("$SRV.PING", b"", reply=inbox)
    found: set[str] = set()
    while found < set(SERVICES):
        answer = json.loads((await subscription.next_msg(timeout=LIMIT_S)).data)
        assert answer["type"] == "io.nats.micro.v1.ping_response"
        found.add(answer["name"])
    for service in SERVICES:
        info = json.loads((await connection.request(f"$SRV.INFO.{service}", b"", timeout=LIMIT_S)).data)
        stats = json.loads((await connection.request(f"$SRV.STATS.{service}", b"", timeout=LIMIT_S)).data)
        assert info["type"] == "io.nats.micro.v1.info_response" and info["name"] == service
        assert stats["type"] == "io.nats.micro.v1.stats_response" and stats["started"]
    await connection.close()


@pytest.mark.parametrize("service", ["tokenizer", "scheduler", "detokenizer"])
def test_a_trace_crosses_nats(node: RunningNode, service: str) -> None:
    assert any(line.get("traceparent") == TRACE for line in log_lines(node, service))


@pytest.mark.parametrize("service", SERVICES)
def test_prompts_are_in_no_log_line_above_debug(node: RunningNode, service: str) -> None:
    lines = log_lines(node, service)
    assert lines
    assert not any(SECRET_PROMPT in json.dumps(line) for line in lines if line["level"] != "debug")
