"""`tokenbus up` as a user runs it: all services, the fake engine, a tiny model."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.node.folder import DataFolder
from tests.deploy.dummies import is_alive, wait_until_gone
from tests.servers import NatsServer
from tests.stored_models import store_tiny_model

READY_S = 90.0
SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")


class Up:
    """A running `tokenbus up`."""

    def __init__(self, folder: Path, models: Path, *options: str) -> None:
        self.folder = DataFolder(folder)
        self.output = folder.with_suffix(".out")
        command = [sys.executable, "-m", "deploy.cli.main", "up", "--data-dir", str(folder), "--port", "0"]
        command += ["--engine", "fake", "--model", "tiny", "--model-repository", str(models), *options]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def wait_ready(self) -> str:
        """The HTTP URL once everything is ready."""
        path = self.folder.root / "http.url"
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if path.exists():
                return path.read_text().strip()
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.output.read_text()}")

    def pids(self) -> dict[str, int]:
        """Process ids by process name, from the data folder."""
        return {path.stem: int(path.read_text()) for path in (self.folder.root / "pids").glob("*.pid")}

    def wait_for_new_pid(self, name: str, old: int) -> int:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            pid = self.pids().get(name, old)
            if pid != old:
                return pid
            time.sleep(0.02)
        raise AssertionError(f"{name} was not started again: {self.output.read_text()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that holds the model `tiny`."""
    folder = tmp_path_factory.mktemp("repository")
    store_tiny_model(folder, "LlamaForCausalLM", max_position_embeddings=512)
    return folder / "models"


@pytest.fixture
def ups() -> Iterator[list[Up]]:
    """Nodes that are gone after the test."""
    started: list[Up] = []
    yield started
    for up in started:
        up.process.kill()
        up.process.wait()


def complete(url: str, prompt: str) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        value: dict[str, Any] = json.load(answer)
        return value


def verify(nats_url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "deploy.cli.main", "log", "verify", "--nats", nats_url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_up_serves_restarts_and_leaves_nothing(tmp_path: Path, models: Path, ups: list[Up]) -> None:
    up = Up(tmp_path / "node", models)
    ups.append(up)
    url = up.wait_ready()
    before = up.pids()
    assert set(before) == {"nats-server", *(f"{service}-0" for service in SERVICES)}
    for name, pid in before.items():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:5]
        role = name.removesuffix("-0")
        assert any(re.search(rf"\b{role}\b", word) for word in words), words
        assert up.folder.log(name).exists()
    first = complete(url, "one")
    os.kill(before["worker-0"], signal.SIGKILL)
    os.kill(before["nats-server"], signal.SIGKILL)
    after_worker = up.wait_for_new_pid("worker-0", before["worker-0"])
    after_nats = up.wait_for_new_pid("nats-server", before["nats-server"])
    second = complete(url, "two")
    report = verify((up.folder.root / "nats.url").read_text().strip())
    logged = [request["token_ids"] for request in report["requests"].values()]
    assert [report[what] for what in ("lost", "duplicated", "foreign", "prefix_mismatched")] == [0, 0, 0, 0]
    assert first["choices"][0]["token_ids"] in logged
    assert second["choices"][0]["token_ids"] in logged
    assert up.stop() == 0, up.output.read_text()
    assert wait_until_gone([*before.values(), after_worker, after_nats]) == []
    assert not (up.folder.root / "http.url").exists()
    assert up.pids() == {}


def test_up_with_a_server_that_is_there(tmp_path: Path, models: Path, nats_server: NatsServer, ups: list[Up]) -> None:
    up = Up(tmp_path / "node", models, "--nats", nats_server.url, "--workers", "2")
    ups.append(up)
    url = up.wait_ready()
    assert set(up.pids()) == {"worker-1", *(f"{service}-0" for service in SERVICES)}
    assert len(complete(url, "one")["choices"][0]["token_ids"]) == 20
    assert up.stop(signal.SIGINT) == 0, up.output.read_text()
    assert is_alive(nats_server.pid)


def test_up_killed_leaves_nothing(tmp_path: Path, models: Path, ups: list[Up]) -> None:
    up = Up(tmp_path / "node", models)
    ups.append(up)
    up.wait_ready()
    pids = list(up.pids().values())
    assert up.stop(signal.SIGKILL) == -signal.SIGKILL
    assert wait_until_gone(pids) == []


def test_limits_that_cannot_fit_fail_with_the_numbers(tmp_path: Path, models: Path, ups: list[Up]) -> None:
    up = Up(tmp_path / "node", models, "--max-model-len", "100000")
    ups.append(up)
    assert up.process.wait(READY_S) == 1
    assert re.search(r"100000.*512", up.output.read_text()), up.output.read_text()


def test_unknown_model_is_one_line(tmp_path: Path, models: Path, ups: list[Up]) -> None:
    up = Up(tmp_path / "node", models, "--model", "nowhere")
    ups.append(up)
    assert up.process.wait(READY_S) == 1
    lines = up.output.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tokenbus up: ")
    assert "nowhere" in lines[0]
