"""A whole node whose worker is a group of two CPU ranks: the tokens of one rank, also when a rank is killed."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.worker.engine.cpu import CpuEngine
from shared.repository.stored_model import StoredModel
from tests.e2e.streams import all_running, connect
from tests.engine.driver import generate, greedy
from tests.engine.options import Options
from tests.nodes import RunningNode, wrongs
from tests.stored_models import store_tiny_model
from tests.waiting import until

NUM_TOKENS = 1500
PROMPTS = [[5, 6, 7], [9, 30, 200, 31, 7] * 9]


def body(prompt: list[int]) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}


def tokens_of_one_rank(stored: StoredModel) -> list[list[int]]:
    return generate(CpuEngine.load(stored, Options(kv_cache_memory_bytes=8 << 20)), PROMPTS, greedy(NUM_TOKENS))


@pytest.mark.full
async def test_streams_go_on_when_a_rank_is_killed(tmp_path: Path) -> None:
    stored = await asyncio.to_thread(store_tiny_model, tmp_path, "LlamaForCausalLM", max_position_embeddings=2048)
    expected = await asyncio.to_thread(tokens_of_one_rank, stored)
    model = ("--model", "tiny", "--model-repository", str(tmp_path / "models"))
    options = ("--engine", "cpu", "--dtype", "float32", "--tensor-parallel-size", "2", "--num-threads", "1")
    with RunningNode(tmp_path / "node", *model, *options) as node:
        before = node.pids()
        (rank,) = psutil.Process(before["worker-0"]).children()
        async with connect(node.url) as client:
            tasks = await all_running(client, "/v1/completions", [body(prompt) for prompt in PROMPTS])
            os.kill(rank.pid, signal.SIGKILL)
            answers = await asyncio.gather(*tasks)
        assert all(answer.whole for answer in answers), [answer.error for answer in answers]
        assert [answer.token_ids for answer in answers] == expected
        await until(lambda: node.pids().get("worker-0", before["worker-0"]) != before["worker-0"], "restart")
        assert [name for name, pid in node.pids().items() if before[name] != pid] == ["worker-0"]
        assert "a rank of this worker has ended" in node.log("worker-0")
        assert wrongs(await asyncio.to_thread(node.verify)) == {}
