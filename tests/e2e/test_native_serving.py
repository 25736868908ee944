"""A whole node on the C++ kernels, in each encoding of the weights: what it says, not only how fast it says it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.streams import many
from tests.e2e.test_serving import LENGTHS, MODEL, question
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S

QUESTION = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 20,
}


@pytest.fixture(scope="module", params=["none", "int8", "gguf"])
def quantization(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def node(quantization: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    options = ("--dtype", "bfloat16", "--quantization", quantization, "--max-model-len", "2048")
    with RunningNode(tmp_path_factory.mktemp("native") / "node", "--engine", "cpu", *options) as running:
        log = (running.folder.root / "logs" / "worker-0.log").read_text()
        assert "kernels=a" in log, "torch computes"
        yield running


async def test_few_streams_between_many_are_the_same_as_ever(node: RunningNode) -> None:
    """Steps of one row, which one thread computes, between steps of many, which all share."""
    bodies = [question(number, length) for number, length in enumerate(LENGTHS)]
    together = await many(node.url, "/v1/completions", bodies)
    assert all(answer.whole for answer in together), [answer.error for answer in together]
    for body, answer in zip(bodies, together, strict=True):
        (solo,) = await many(node.url, "/v1/completions", [body])
        assert (solo.token_ids, solo.text) == (answer.token_ids, answer.text)
    assert wrongs(await asyncio.to_thread(node.verify)) == {}


async def test_the_answer_is_the_same_each_time(node: RunningNode, quantization: str) -> None:
    """In 4 bits it is not Paris: "The" is ahead of "L" by no more than 0.1, which is less than quantisation moves."""
    answers = set()
    async with httpx.AsyncClient(base_url=node.url, trust_env=False, timeout=LIMIT_S) as client:
        for _ in range(3):
            await many(node.url, "/v1/completions", [question(number, 4) for number in range(8)])
            answer: dict[str, Any] = (await client.post("/v1/chat/completions", json=QUESTION)).json()
            answers.add(answer["choices"][0]["message"]["content"])
    assert len(answers) == 1
    if quantization != "gguf":
        assert answers.pop().startswith("The capital of France is Paris")
