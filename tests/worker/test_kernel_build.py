"""The build of the C++ kernels at a worker's first start: told in its log and on its health port."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from deploy.node.nats_server import free_port
from deploy.node.processes import HealthProbe
from kernels.native.build import library_file
from kernels.native.isa import cpu_flags, levels_of
from tests.servers import NatsServer
from tests.service_process import command
from tests.waiting import until
from tests.worker.test_leaving import worker
from tests.worker.test_process import leader_of

# The compiler's place: it waits for a word on a pipe, then "links" a library that was built before.
COMPILER = """#!/bin/sh
case "$*" in
*--version*) echo fast ;;
*-shared*)
  read word < {pipe}
  [ "$word" = go ] || exit 1
  while [ "$1" != -o ]; do shift; done
  cp {library} "$2" ;;
esac
"""


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to say go, or anything else for a build that fails; nothing is built yet."""
    os.mkfifo(tmp_path / "pipe")
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(pipe=tmp_path / "pipe", library=library_file(levels_of(cpu_flags())[-1])))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "pipe"


def events(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("word", ["go", "stop"])
async def test_a_build_is_told_while_it_lasts_and_when_it_is_done(
    nats_server: NatsServer, repository: Path, tmp_path: Path, pipe: Path, word: str
) -> None:
    port = free_port()
    options = ("--engine", "cpu", "--dtype", "bfloat16", "--max-model-len", "400", "--health-port", str(port))
    arguments = command("worker", repository, "--nats", nats_server.url, *options)
    async with leader_of(nats_server), worker(arguments, tmp_path / "log") as running:
        await until(lambda: "building the C++ kernels" in running.log, "the build")
        assert await HealthProbe(port).state() == "building the C++ kernels"
        await asyncio.to_thread(pipe.write_text, f"{word}\n")
        await until(lambda: '"ready"' in running.log, "the end of the start")
        lines = [event for event in events(running.log) if "C++ kernels" in event["event"]]
        assert await HealthProbe(port).state() != "building the C++ kernels"
        (ready,) = [event for event in events(running.log) if event["event"] == "ready"]
    library = lines[0]["library"]
    assert library.startswith(str(tmp_path / "cache" / "tokenbus" / "kernels"))
    if word == "go":
        assert [event["event"] for event in lines] == ["building the C++ kernels", "built the C++ kernels"]
        assert lines[1]["library"] == library
        assert lines[1]["took_s"] >= 0
        assert ready["kernels"] == levels_of(cpu_flags())[-1]
    else:
        assert [event["event"] for event in lines] == ["building the C++ kernels"]
        assert ready["kernels"].startswith("torch: ")


async def test_a_start_without_a_build_tells_of_none(nats_server: NatsServer, repository: Path, tmp_path: Path) -> None:
    library_file(levels_of(cpu_flags())[-1])
    options = ("--engine", "cpu", "--dtype", "bfloat16", "--max-model-len", "400")
    arguments = command("worker", repository, "--nats", nats_server.url, *options)
    async with leader_of(nats_server), worker(arguments, tmp_path / "log") as running:
        await until(lambda: '"ready"' in running.log, "the end of the start")
        assert "C++ kernels" not in running.log
