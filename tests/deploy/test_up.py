"""`tokenbus up` as a user runs it: all services, the fake engine, a tiny model."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.nats.secured import SecuredServer
from tests.nodes import RunningNode, wrongs
from tests.processes import is_alive, wait_until_gone
from tests.servers import NatsServer
from tests.stored_models import store_tiny_model
from tests.waiting import LIMIT_S

SERVICES = ("gateway", "tokenizer", "scheduler", "worker", "detokenizer")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a node with the fake engine and the model `tiny`."""
    folder = tmp_path_factory.mktemp("repository")
    store_tiny_model(folder, "LlamaForCausalLM", max_position_embeddings=512)
    return ["--engine", "fake", "--model", "tiny", "--model-repository", str(folder / "models")]


def complete(url: str, prompt: str) -> list[int]:
    """The token ids of a completion of 20 tokens."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        token_ids: list[int] = json.load(answer)["choices"][0]["token_ids"]
        return token_ids


def flip_last_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def new_pid(node: RunningNode, name: str, old: int) -> int:
    """The process id of the next start."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        pid = node.pids().get(name, old)
        if pid != old:
            return pid
        time.sleep(0.02)
    raise AssertionError(f"{name} was not started again: {node.output.read_text()}")


def failed_start(folder: Path, options: list[str]) -> str:
    """What `tokenbus up` says when it cannot start and exits 1."""
    command = [sys.executable, "-m", "deploy.cli.main", "up", "--port", "0", "--data-dir", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done
    return done.stderr


def test_up_serves_restarts_and_leaves_nothing(tmp_path: Path, options: list[str]) -> None:
    with RunningNode(tmp_path / "node", *options) as node:
        before = node.pids()
        assert set(before) == {"nats-server", *(f"{service}-0" for service in SERVICES)}
        for name, pid in before.items():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:5]
            assert any(re.search(rf"\b{name.removesuffix('-0')}\b", word) for word in words), words
            assert node.folder.log(name).exists()
        answers = [complete(node.url, "one")]
        killed = [(name, node.signal(name)) for name in ("worker-0", "nats-server")]
        after = [new_pid(node, name, pid) for name, pid in killed]
        answers.append(complete(node.url, "two"))
        report: dict[str, Any] = node.verify()
        logged = [request["token_ids"] for request in report["requests"].values()]
        assert wrongs(report) == {}
        assert all(token_ids in logged for token_ids in answers)
    assert wait_until_gone([*before.values(), *after]) == []
    assert not (node.folder.root / "http.url").exists()
    assert node.pids() == {}


def test_up_with_a_server_that_is_there(tmp_path: Path, options: list[str], nats_server: NatsServer) -> None:
    with RunningNode(tmp_path / "node", *options, "--nats", nats_server.url, "--workers", "2") as node:
        assert set(node.pids()) == {"worker-1", *(f"{service}-0" for service in SERVICES)}
        assert node.nats == nats_server.url
        assert len(complete(node.url, "one")) == 20
    assert is_alive(nats_server.pid)


def test_up_with_a_secured_server_tells_commands_where_the_keys_are(tmp_path: Path, options: list[str]) -> None:
    with SecuredServer(tmp_path) as server:
        access = ["--nats", server.url, "--nats-credentials", str(server.identities.root)]
        with RunningNode(tmp_path / "node", *options, *access) as node:
            assert len(complete(node.url, "one")) == 20
            assert wrongs(node.verify()) == {}
            ask = [sys.executable, "-m", "deploy.cli.main", "ask", "--data-dir", str(node.folder.root)]
            done = subprocess.run(
                [*ask, "--max-tokens", "8", "one"], capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("secured_first", [True, False])
def test_a_log_is_not_left_behind_by_another_kind_of_start(
    secured_first: bool, tmp_path: Path, options: list[str]
) -> None:
    secured = [*options, "--secure"]
    first, second = (secured, options) if secured_first else (options, secured)
    with RunningNode(tmp_path / "node", *first) as node:
        token_ids = complete(node.url, "one")
        assert "in use by a running node" in failed_start(tmp_path / "node", first)
    (line,) = failed_start(tmp_path / "node", second).splitlines()
    made = "with --secure" if secured_first else "without --secure"
    assert line.startswith(f"tokenbus up: data folder {tmp_path / 'node'} holds the log of a node {made}: ")
    with RunningNode(tmp_path / "node", *first) as node:
        assert token_ids in [request["token_ids"] for request in node.verify()["requests"].values()]


def test_up_killed_leaves_nothing(tmp_path: Path, options: list[str]) -> None:
    left: list[int] = [-1]
    with pytest.raises(AssertionError), RunningNode(tmp_path / "node", *options) as node:
        pids = list(node.pids().values())
        assert node.process is not None
        node.process.send_signal(signal.SIGKILL)
        left = wait_until_gone(pids)
    assert left == []
    assert len(pids) == 6
    assert node.process.returncode == -signal.SIGKILL


def test_limits_that_cannot_fit_fail_with_the_numbers(tmp_path: Path, options: list[str]) -> None:
    assert re.search(r"100000.*512", failed_start(tmp_path / "node", [*options, "--max-model-len", "100000"]))


def test_a_log_that_does_not_fit_the_disk_is_told_at_once(tmp_path: Path, options: list[str]) -> None:
    error = failed_start(tmp_path / "node", [*options, "--log-max-bytes", str(1 << 60)])
    assert "--log-max-bytes: nats-server has no storage left" in error
    assert "Traceback" not in error


def test_a_damaged_version_is_told_and_an_older_one_serves(tmp_path: Path) -> None:
    files = []
    for seed in (0, 1):
        folder = store_tiny_model(tmp_path, "LlamaForCausalLM", seed=seed, max_position_embeddings=512).path
        files.append(folder / "model.safetensors")
    options = ["--engine", "fake", "--model", "tiny", "--model-repository", str(tmp_path / "models")]
    flip_last_bit(files[1])
    with RunningNode(tmp_path / "node", *options) as node:
        assert len(complete(node.url, "one")) == 20
        for service in ("worker", "tokenizer"):
            assert 'model_version = "1"' in node.folder.config(f"{service}-0.toml").read_text()
        (warning,) = [line for line in node.output.read_text().splitlines() if "Warning" in line]
        assert warning == f"Warning: tiny version 2 is passed over: {files[1]}: its SHA-256 differs from the stored one"
    (line,) = failed_start(tmp_path / "node", [*options, "--model-version", "2"]).splitlines()
    assert line == f"tokenbus up: {files[1]}: its SHA-256 differs from the stored one"
    flip_last_bit(files[0])
    (line,) = failed_start(tmp_path / "node", options).splitlines()
    assert re.fullmatch(rf"tokenbus up: model tiny has no sound version; .*{files[1]}.*{files[0]}.*", line)


def test_unknown_model_is_one_line(tmp_path: Path, options: list[str]) -> None:
    lines = failed_start(tmp_path / "node", [*options, "--model", "nowhere"]).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tokenbus up: ")
    assert "nowhere" in lines[0]
