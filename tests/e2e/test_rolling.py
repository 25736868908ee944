"""`tokenbus restart --rolling` of every service while clients stream: no stream fails, every process is a new one."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.clients import Clients
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S

NUM_CLIENTS = 16
BODY = {"model": "smollm2-135m", "prompt": "on and on", "max_tokens": 60, "ignore_eos": True}
RESTART_LIMIT_S = 3 * LIMIT_S
TWO_OF_EACH = [f"--{service}s=2" for service in ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")]
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "20", "--drain-timeout-s", "10")


async def tokenbus(*words: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli.main", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), RESTART_LIMIT_S)
    return process.returncode or 0, output.decode()


@pytest.mark.timeout(RESTART_LIMIT_S + 60)  # ten processes start one after the other: long on busy cores
async def test_a_rolling_restart_under_load_fails_no_stream(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", *OPTIONS, *TWO_OF_EACH) as node:
        before = node.pids()
        async with Clients(node.url, NUM_CLIENTS, BODY) as clients:
            await clients.all_answered()
            status, output = await tokenbus("restart", "--rolling", "--data-dir", str(node.folder.root))
            await clients.all_answered()
        assert status == 0, output
        assert clients.failures == []
        assert {len(answer.token_ids) for answer in clients.answers} == {BODY["max_tokens"]}
        after = node.pids()
        assert after.keys() == before.keys()
        assert {name for name, pid in after.items() if pid == before[name]} == {"nats-server"}
        report = await asyncio.to_thread(node.verify)
        assert wrongs(report) == {}
        for answer in clients.answers:
            assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids
        status, output = await tokenbus("status", "--data-dir", str(node.folder.root))
        assert status == 0, output
