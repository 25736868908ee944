"""Commands whose stdout nobody reads any more, or that have none: they end without a word."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TextIO

import pytest

from deploy.cli import main as cli
from deploy.cli.output import STATUS
from tests.deploy.test_cli import ask, server
from tests.deploy.test_up import options
from tests.nodes import RunningNode
from tests.processes import wait_until_gone
from tests.waiting import LIMIT_S

__all__ = ["options", "server"]

COMMAND = [sys.executable, "-m", "deploy.cli.main"]


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextlib.contextmanager
def stdout_at(number: int) -> Iterator[TextIO]:
    """This process's stdout there. Not in a fixture: pytest puts its own in place for each phase of a test."""
    before = sys.stdout
    with open(number, "w", encoding="utf-8", closefd=False) as file:
        sys.stdout = file
        try:
            yield file
        finally:
            sys.stdout = before


COMMANDS = [
    ["--help"],
    ["version"],
    ["up", "--help"],
    ["worker", "--help"],
    ["bench", "--help"],
    ["bench", "serve", "--help"],
    ["log", "--help"],
    ["model", "list"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_prints_ends_quietly(
    words: list[str], unread: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with stdout_at(unread) as stdout:
        assert cli.main(words) == STATUS
        assert sys.stdout is stdout
    assert capsys.readouterr().err == ""


def test_ask_over_http_takes_it_for_no_failure_of_the_server(
    server: ThreadingHTTPServer, unread: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with stdout_at(unread):
        assert ask(server, "hello") == STATUS
    assert capsys.readouterr().err == ""


def test_the_process_says_nothing_at_its_exit_either(unread: int) -> None:
    done = subprocess.run([*COMMAND, "version"], stdout=unread, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (STATUS, b"")


def test_a_broken_pipe_of_something_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise BrokenPipeError("a connection")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(BrokenPipeError, match="a connection"):
        cli.main(["status"])


def test_without_a_stdout_an_answer_is_still_an_answer(server: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "ask", "hello", "--url", url]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("2 tokens, ")


def test_ask_and_log_over_nats_end_quietly_and_the_node_serves_on(
    tmp_path: Path, options: list[str], unread: int
) -> None:
    with RunningNode(tmp_path / "node", *options) as node:
        where, short = ["--data-dir", str(node.folder.root)], ["--max-tokens", "8"]
        for words in (["ask", *where, *short, "one"], ["log", "verify", *where], ["status", *where]):
            done = subprocess.run(
                [*COMMAND, *words], stdout=unread, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False
            )
            assert (done.returncode, done.stderr) == (STATUS, b""), (words, done.stderr)
        again = subprocess.run(
            [*COMMAND, "ask", *where, *short, "two"], capture_output=True, timeout=LIMIT_S, check=False
        )
        assert again.returncode == 0, again.stderr
        assert again.stdout.strip()


@pytest.mark.parametrize("until", ["Starting", "Stop with Ctrl-C."])
def test_a_node_stops_when_it_has_something_to_say_to_nobody(tmp_path: Path, options: list[str], until: str) -> None:
    """Everything that it started ends with it; while it has nothing to say it serves."""
    command = [*COMMAND, "up", "--port", "0", "--data-dir", str(tmp_path / "node"), *options]
    with (tmp_path / "stderr").open("wb") as stderr:
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert node.stdout is not None
    try:
        while node.stdout.readline().strip() != until:
            assert node.poll() is None
        node.stdout.close()
        pids = RunningNode(tmp_path / "node").pids()
        if until == "Stop with Ctrl-C.":
            assert len(pids) == 6
            os.kill(pids["worker-0"], signal.SIGKILL)
        assert node.wait(LIMIT_S) == STATUS
        assert (tmp_path / "stderr").read_text() == ""
    finally:
        node.kill()
        node.wait()
    assert wait_until_gone([*pids.values()]) == []
    assert RunningNode(tmp_path / "node").pids() == {}
