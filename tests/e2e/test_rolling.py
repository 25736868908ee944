"""`tokenbus restart --rolling` of every service while clients stream: no stream fails, every process is a new one."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.streams import Answer, connect, stream
from tests.nodes import RunningNode, wrongs
from tests.waiting import until

NUM_CLIENTS = 16
NUM_TOKENS = 100
RESTART_LIMIT_S = 90.0
TWO_OF_EACH = [f"--{service}s=2" for service in ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")]
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "10", "--drain-timeout-s", "10")


class Clients:
    """Each asks again as soon as its answer has ended, over connections that are kept, until told to stop."""

    def __init__(self, url: str) -> None:
        self.answers: list[Answer] = []
        self._url = url
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Clients":
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(NUM_CLIENTS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    @property
    def failures(self) -> list[str]:
        """What went wrong, of the streams that ended."""
        return [answer.error or "not whole" for answer in self.answers if not answer.whole]

    async def _ask(self, number: int) -> None:
        async with connect(self._url) as client:
            while not self._over.is_set():
                self.answers.append(await stream(client, "/v1/completions", body(number)))


def body(number: int) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": f"client {number}", "max_tokens": NUM_TOKENS, "ignore_eos": True}


async def tokenbus(*words: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli.main", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), RESTART_LIMIT_S)
    return process.returncode or 0, output.decode()


async def test_a_rolling_restart_under_load_fails_no_stream(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "node", *OPTIONS, *TWO_OF_EACH) as node:
        before = node.pids()
        async with Clients(node.url) as clients:
            await until(lambda: len(clients.answers) >= NUM_CLIENTS, "a first answer for each client")
            status, output = await tokenbus("restart", "--rolling", "--data-dir", str(node.folder.root))
            num_answers = len(clients.answers)
            await until(lambda: len(clients.answers) >= num_answers + NUM_CLIENTS, "answers after the restart")
        assert status == 0, output
        assert clients.failures == []
        assert {len(answer.token_ids) for answer in clients.answers} == {NUM_TOKENS}
        after = node.pids()
        assert after.keys() == before.keys()
        assert {name for name, pid in after.items() if pid == before[name]} == {"nats-server"}
        assert "died" not in node.output.read_text()
        report = await asyncio.to_thread(node.verify)
        assert wrongs(report) == {}
        for answer in clients.answers:
            assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids
        status, output = await tokenbus("status", "--data-dir", str(node.folder.root))
        assert status == 0, output
