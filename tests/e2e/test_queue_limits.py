"""A full queue on a real node: what is too much gets 503 with Retry-After at once, the rest is served."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.streams import all_running, connect
from tests.nodes import RunningNode, wrongs

NUM_REQUESTS = 40
MAX_QUEUED = 4
MAX_NUM_SEQS = 2
OPTIONS = ("--engine", "fake", "--fake-step-ms", "50", "--max-num-seqs", str(MAX_NUM_SEQS), "--tokenizers", "3")
BODY: dict[str, Any] = {"model": "smollm2-135m", "max_tokens": 20, "ignore_eos": True}


@pytest.mark.parametrize("limit", [("--max-num-queued-reqs", str(MAX_QUEUED)), ("--max-num-queued-tokens", "60")])
async def test_rule_13_requests_over_the_queues_limit_get_503_at_once(tmp_path: Path, limit: tuple[str, str]) -> None:
    """Three tokenizers judge early and each for itself; what they let through together the leader judges exactly."""
    with RunningNode(tmp_path / "node", *OPTIONS, *limit) as node:
        async with connect(node.url) as client:
            prompts = [f"{number} is a number of some words that waits" for number in range(NUM_REQUESTS)]
            endless = {**BODY, "prompt": "on and on", "max_tokens": 4000}
            seated = await all_running(client, "/v1/completions", [endless] * MAX_NUM_SEQS)
            asking = [
                asyncio.create_task(client.post("/v1/completions", json={**BODY, "prompt": prompt}))
                for prompt in prompts
            ]
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status_code for task in done} == {503}, "at once: while nobody could be answered"
            assert not any(task.done() for task in seated)
            for task in seated:
                task.cancel()
            answers = await asyncio.gather(*asking)
        refused = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in refused} == {503}
        for answer in refused:
            assert answer.json()["error"]["code"] == "queue_full"
            assert answer.json()["error"]["type"] == "service_unavailable_error"
            assert int(answer.headers["retry-after"]) >= 1
        assert 1 <= len(answers) - len(refused) < NUM_REQUESTS
        assert wrongs(await asyncio.to_thread(node.verify)) == {}
