"""Rule 20 on real processes: a request that kills every worker that computes it is ended after two deaths alone, and
nobody else notices more than a pause."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.e2e.streams import connect, stream
from tests.e2e.test_kill import CHAINED, MODEL, body, streams_with
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

MARKER = "arsenic trioxide"
POISON = {"model": MODEL, "prompt": f"A spoon of {MARKER}, please", "max_tokens": 20}
NUM_DEATHS = 3  # once in a step with others, twice alone


def num_deaths(node: RunningNode, num_workers: int) -> int:
    """How many workers have died: those that said they were ready, less those there are."""
    logs = [node.log(f"worker-{index}") for index in range(num_workers)]
    return sum(log.count(" ready ") for log in logs) - num_workers


async def check_refusal(client: httpx.AsyncClient, streaming: bool) -> None:
    """Before its first token it has an HTTP status, stream or not."""
    body = POISON | {"stream": streaming}
    refused = await client.post("/v1/completions", json=body, timeout=LIMIT_S)
    assert refused.status_code == 500, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("quarantined", "server_error")


@pytest.mark.parametrize(("num_workers", "streaming"), [(1, False), (2, True)])
async def test_rule_20_poison_is_quarantined_and_its_batch_mates_finish(
    tmp_path: Path, num_workers: int, streaming: bool
) -> None:
    options = (*CHAINED, "--workers", str(num_workers), "--test-poison", MARKER)
    with RunningNode(tmp_path / "node", *options) as node:
        before = {name: pid for name, pid in node.pids().items() if not name.startswith("worker")}
        async with connect(node.url) as client:
            answers = await streams_with(node, "beside poison", lambda: check_refusal(client, streaming))
            await until(lambda: len(node.pids("worker")) == num_workers, "all workers")
            answers.append(await stream(client, "/v1/completions", body(0, "afterwards")))
        assert [answer.error for answer in answers if not answer.whole] == []
        assert {name: node.pids().get(name) for name in before} == before, "another process went too"
        assert num_deaths(node, num_workers) == NUM_DEATHS
        report = await asyncio.to_thread(node.verify)
        assert wrongs(report) == {}
        for answer in answers:
            logged = report["requests"].pop(answer.id.removeprefix("cmpl-"))
            assert logged == logged | {"token_ids": answer.token_ids, "finish_reason": "length"}
        reasons = [request["finish_reason"] for request in report["requests"].values()]  # canaries among them
        assert reasons.count("quarantined") == 1
