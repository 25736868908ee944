"""A whole node with the real model in float32, and with workers that come and go."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.clients import Clients
from tests.e2e.probes import get, health_url, metric, sample
from tests.e2e.streams import many
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

MODEL = "smollm2-135m"
LENGTHS = (4, 40, 9, 64, 17, 33, 5, 50, 25, 12, 60, 8, 30, 21, 45, 15)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("real") / "node"
    with RunningNode(folder, "--engine", "cpu", "--dtype", "float32", "--max-model-len", "2048") as running:
        yield running


def question(number: int, length: int) -> dict[str, Any]:
    prompt = f"Question {number}: " + "why is the sky blue at noon and red at dusk? " * (number % 5 + 1)
    return {"model": MODEL, "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}


async def test_16_streams_equal_their_solo_runs_and_are_batched(node: RunningNode) -> None:
    bodies = [question(number, length) for number, length in enumerate(LENGTHS)]
    frames, rows = (metric(node, "worker-0", f"tokenbus_worker_{what}_total") for what in ("frames", "rows"))
    together = await many(node.url, "/v1/completions", bodies)
    frames = metric(node, "worker-0", "tokenbus_worker_frames_total") - frames
    rows = metric(node, "worker-0", "tokenbus_worker_rows_total") - rows
    assert all(answer.whole for answer in together), [answer.error for answer in together]
    assert [len(answer.token_ids) for answer in together] == list(LENGTHS)
    assert rows / frames > 4, f"{rows} rows in {frames} frames"
    for body, answer in zip(bodies, together, strict=True):
        (solo,) = await many(node.url, "/v1/completions", [body])
        assert (solo.token_ids, solo.text) == (answer.token_ids, answer.text)
    assert wrongs(await asyncio.to_thread(node.verify)) == {}


async def test_the_openai_sdk_works_unchanged(node: RunningNode) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{node.url}/v1", api_key="none", http_client=httpx.AsyncClient(trust_env=False)
    ) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        chat = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=20,
        )
        assert "Paris" in (chat.choices[0].message.content or "") and chat.choices[0].finish_reason == "stop"
        events = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=2,
        )
        text, usage = "", None
        async for event in events:
            usage = event.usage or usage
            text += "".join(choice.delta.content or "" for choice in event.choices)
        assert text == chat.choices[0].message.content and usage is not None and usage == chat.usage
        completion = await client.completions.create(model=MODEL, prompt="One, two,", temperature=0, logprobs=1)
        logprobs = completion.choices[0].logprobs
        assert completion.usage is not None and completion.usage.completion_tokens == 16
        assert logprobs is not None and len(logprobs.tokens or []) == 16
        assert "".join(logprobs.tokens or []) == completion.choices[0].text
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=MODEL, messages=[], temperature=3)
        assert refused.value.status_code == 400


async def test_rule_16_choices_differ_and_a_seed_repeats_them(node: RunningNode) -> None:
    body = {"model": MODEL, "prompt": "My favourite colour is", "max_tokens": 12, "ignore_eos": True, "n": 3, "seed": 7}

    async def ask(**changes: Any) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=node.url, timeout=LIMIT_S, trust_env=False) as client:
            response = await client.post("/v1/completions", json={**body, "temperature": 1.0, **changes})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    first = await ask()
    texts = [choice["text"] for choice in first["choices"]]
    assert len(set(texts)) == 3
    assert first["usage"]["completion_tokens"] == 36
    assert [choice["text"] for choice in (await ask())["choices"]] == texts
    assert [choice["text"] for choice in (await ask(seed=8))["choices"]] != texts


async def test_a_stop_string_ends_the_stream_and_never_shows(node: RunningNode) -> None:
    plain = {"model": MODEL, "prompt": "Count: one, two, three,", "max_tokens": 40, "temperature": 0}
    (whole,) = await many(node.url, "/v1/completions", [plain])
    stop = whole.text[len(whole.text) // 2 :][:5]
    (cut,) = await many(node.url, "/v1/completions", [{**plain, "stop": stop}])
    assert cut.finish_reason == "stop" and cut.text == whole.text[: whole.text.index(stop)]


class ExtraWorker:
    """A worker that joins a running node."""

    def __init__(self, node: RunningNode, folder: Path, *options: str) -> None:
        self.log = folder / "extra.log"
        command = [sys.executable, "-m", "services.worker", "--nats", node.nats, "--model", MODEL, *options]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    @property
    def num_rows(self) -> float:
        _, text = get(f"{health_url(self.log.read_text())}/metrics")
        return sample(text, "tokenbus_worker_rows_total")


async def test_workers_join_and_leave_while_streams_run(tmp_path: Path) -> None:
    engine = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10", "--max-num-seqs", "4")
    body = {"model": MODEL, "prompt": "join", "max_tokens": 60, "ignore_eos": True}
    extras: list[ExtraWorker] = []
    with RunningNode(tmp_path / "node", *engine) as node:
        try:
            async with Clients(node.url, 16, body) as clients:
                for number in range(2):
                    folder = tmp_path / str(number)
                    folder.mkdir()
                    extras.append(ExtraWorker(node, folder, *engine))
                for extra in extras:
                    await until(lambda extra=extra: "ready" in extra.log.read_text() and extra.num_rows > 0, "rows")  # type: ignore[misc]
                extras[0].process.terminate()
                assert await asyncio.to_thread(extras[0].process.wait, LIMIT_S) == 0
                await clients.all_answered()
            assert metric(node, "worker-0", "tokenbus_worker_rows_total") > 0
        finally:
            for extra in extras:
                extra.process.terminate()
                await asyncio.to_thread(extra.process.wait, LIMIT_S)
        report = await asyncio.to_thread(node.verify)
    assert clients.failures == []
    assert {len(answer.token_ids) for answer in clients.answers} == {60}
    assert wrongs(report) == {}
    for answer in clients.answers:
        assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids
