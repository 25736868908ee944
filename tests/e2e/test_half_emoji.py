"""kill -9 of a detokenizer between the bytes of one emoji, of which each is a token of its own.

The text of half a character is nothing yet: another detokenizer must find it again in the log, and none of it twice.
"""

import asyncio
import itertools
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from services.worker.engine.fake import FakeEngine
from services.worker.engine.interface import RowSampling, StepInput
from shared.messages.sampling import Sampling
from tests.e2e.probes import metric, probe, sample_or_none
from tests.e2e.streams import Answer, connect, stream
from tests.nodes import RunningNode, wrongs
from tests.stored_models import smollm2
from tests.waiting import until

EMOJI = "😀"
NUM_BYTES = len(EMOJI.encode())
NUM_EMOJI = 2
OPTIONS = ("--engine", "fake", "--fake-mode", "pure", "--fake-step-ms", "150", "--detokenizers", "2")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("emoji") / "node", *OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def byte_tokens() -> list[int]:
    """The tokens of the emoji's bytes, in order. A byte-level vocabulary writes each byte as a letter."""
    tokenizer = Tokenizer.from_file(str(smollm2().tokenizer_file))
    letters = "ðŁĺĢ"  # F0 9F 98 80
    ids = [token for token in map(tokenizer.token_to_id, letters) if token is not None]
    assert tokenizer.decode(ids) == EMOJI
    assert "\ufffd" in tokenizer.decode(ids[:2]), "half an emoji is no text"
    return ids


@pytest.fixture(scope="module")
def seed(byte_tokens: list[int]) -> int:
    """A request's seed with which the fake engine draws the emoji's bytes in turn when it may draw nothing else."""
    wanted = byte_tokens * NUM_EMOJI
    engine = FakeEngine(
        model="m",
        model_version="1",
        vocab_size=max(wanted) + 1,
        token_ids=np.array(wanted, dtype=np.int32),
        num_blocks=1,
        block_size=16,
        max_model_len=16,
        step_s=0.0,
        mode="pure",
    )
    sampling = Sampling(max_tokens=len(wanted), allowed_token_ids=tuple(byte_tokens))
    seeds: list[int] = []
    candidates = itertools.count()
    while not seeds:
        seeds = list(itertools.islice(candidates, 4096))
        for position, token in enumerate(wanted):
            each_sampling = (replace(sampling, seed=each) for each in seeds)
            tokens = engine.step(batch_of([RowSampling(each, 1) for each in each_sampling], position)).tokens
            seeds = [each for each, drawn in zip(seeds, tokens, strict=True) if drawn == token]
    return seeds[0]


def batch_of(rows: list[RowSampling], position: int) -> StepInput:
    """All rows at one output position; the fake engine looks at nothing but the rows and their positions."""
    none = np.zeros(0, dtype=np.int32)
    positions = np.full(len(rows), position, dtype=np.int32)
    return StepInput(none, none.astype(np.int64), none.astype(np.int64), none, none, none, none, positions, rows)


@pytest.mark.parametrize("num_read", [2, 5, 6])
async def test_a_detokenizer_killed_between_the_bytes_of_an_emoji(
    node: RunningNode, byte_tokens: list[int], seed: int, num_read: int
) -> None:
    wanted = byte_tokens * NUM_EMOJI
    body: dict[str, Any] = {"model": "smollm2-135m", "prompt": f"smile {num_read}", "seed": seed}
    body |= {"max_tokens": len(wanted), "ignore_eos": True, "allowed_token_ids": byte_tokens}
    async with connect(node.url) as client:
        while True:
            answer = Answer()
            reading = asyncio.create_task(stream(client, "/v1/completions", body, answer))
            await until(lambda: len(answer.token_ids) >= 1 or reading.done(), "the first token")  # noqa: B023
            serving = [name for name in node.pids("detokenizer") if metric(node, name, "tokenbus_detokenizer_readers")]
            await until(lambda: len(answer.token_ids) >= num_read or reading.done(), "half an emoji")  # noqa: B023
            if len(answer.token_ids) == num_read:
                break
            await reading  # this process looked too late: once more
            assert answer.whole, answer.error
        (victim,) = serving
        pid = node.signal(victim)
        assert (answer.token_ids, answer.text) == (wanted[:num_read], EMOJI * (num_read // NUM_BYTES))
        await reading
    assert answer.whole, answer.error
    assert (answer.token_ids, answer.text) == (wanted, EMOJI * NUM_EMOJI)
    assert answer.finish_reason == "length"
    report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == wanted
    await until(lambda: node.pids().get(victim, pid) != pid, "restart")
    await until(lambda: metric_or_none(node, victim) is not None, "its metrics")


def metric_or_none(node: RunningNode, process: str) -> float | None:
    """Readers of a detokenizer that may not listen yet, or not have come to its metrics."""
    try:
        text = probe(node, process, "/metrics")
    except (OSError, HTTPException):
        return None
    return sample_or_none(text, "tokenbus_detokenizer_readers")
