"""The disk under the log is full in mid-stream: new requests get 503, and nothing that was accepted is lost."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.streams import all_running, connect
from tests.nodes import RunningNode, wrongs
from tests.waiting import LIMIT_S, until

NUM_STREAMS = 8
NUM_TOKENS = 600  # 12 s at least: the disk is full before
OPTIONS = ("--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", "20", "--log-max-bytes", "64000000")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 MB where the node keeps its log."""
    store = tmp_path / "node" / "nats"
    store.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(store)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    assert not done.returncode, f"a disk of its own needs the right to mount: {done.stderr.strip()}"
    try:
        yield store
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)


def body(number: int, num_tokens: int = NUM_TOKENS) -> dict[str, Any]:
    return {"model": "smollm2-135m", "prompt": f"x {number}", "max_tokens": num_tokens, "ignore_eos": True}


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def refusal(client: httpx.AsyncClient) -> httpx.Response:
    """The first request that is not served: those before it still found room, or wait for the log."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while asyncio.get_running_loop().time() < end:
        with contextlib.suppress(httpx.ReadTimeout):
            response = await client.post("/v1/completions", json=body(99, 5), timeout=3.0)
            if not response.is_success:
                return response
    raise AssertionError(f"not refused within {LIMIT_S} s")


@pytest.mark.full
async def test_a_full_disk_stops_admission_and_loses_nothing(small_disk: Path) -> None:
    with RunningNode(small_disk.parent, *OPTIONS) as node:
        before = node.pids()
        async with connect(node.url) as client:
            tasks = await all_running(client, "/v1/completions", [body(number) for number in range(NUM_STREAMS)])
            await asyncio.to_thread(fill, small_disk / "ballast")
            refused = await refusal(client)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "log_stuck")
            assert int(refused.headers["Retry-After"]) > 0
            (small_disk / "ballast").unlink()
            pid = node.signal("nats-server", signal.SIGTERM)  # it does not write again by itself
            await until(lambda: node.pids().get("nats-server", pid) != pid, "restart")
            answers = await asyncio.gather(*tasks)
        assert [answer.error for answer in answers if not answer.whole] == []
        assert {len(answer.token_ids) for answer in answers} == {NUM_TOKENS}
        changed = {name for name, pid in node.pids().items() if pid != before[name]}
        assert changed == {"nats-server"}, "another process went too"
        report = await asyncio.to_thread(node.verify)
    assert wrongs(report) == {}
    for answer in answers:
        assert report["requests"][answer.id.removeprefix("cmpl-")]["token_ids"] == answer.token_ids
