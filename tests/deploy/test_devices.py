"""Every worker of a node has CUDA devices of its own: what its process finds in CUDA_VISIBLE_DEVICES."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import up
from deploy.node import devices
from deploy.node.checks import NotPossible
from deploy.node.child import Child
from deploy.node.config import NodeConfig, node_config
from deploy.node.devices import VISIBLE, ask_driver, deal, listed_devices, worker_environments
from deploy.node.folder import DataFolder
from deploy.node.listeners import open_listeners
from deploy.node.node import make_processes
from deploy.node.processes import Start
from shared.config import build, make_parser, read_options
from tests.deploy.dummies import Dummy, DummyProbe

CUDA = ("--engine", "cuda")
A_DRIVER = """
extern "C" int cuInit(unsigned) {{ return {status}; }}
extern "C" int cuDeviceGetCount(int* count) {{ *count = {count}; return 0; }}
"""


def options(*argv: str) -> tuple[NodeConfig, dict[str, Any]]:
    kind = node_config()
    given = read_options(kind, make_parser(kind, "up"), list(argv))
    return build(kind, given), given


def visible(*argv: str, listed: str | None = None, count: int = 0) -> list[str | None]:
    """What each worker finds, None for nothing. count: of the machine's devices, where they are asked for."""
    environment = {} if listed is None else {VISIBLE: listed}
    found = worker_environments(*options(*argv), environment, lambda: count)
    assert all(set(each) <= {VISIBLE} for each in found)
    return [each.get(VISIBLE) for each in found]


def test_each_group_has_devices_of_its_own() -> None:
    groups = (*CUDA, "--workers", "2", "--tensor-parallel-size", "2")
    assert visible(*groups, count=4) == ["0,1", "2,3"]
    assert visible(*groups, count=8) == ["0,1", "2,3"]
    assert visible(*groups, listed="7,5, GPU-1f,3,1") == ["7,5", "GPU-1f,3"]


def test_workers_of_one_device_share_only_where_there_are_fewer_devices() -> None:
    assert visible(*CUDA, count=4) == ["0"]
    assert visible(*CUDA, "--workers", "3", count=4) == ["0", "1", "2"]
    assert visible(*CUDA, "--workers", "3", count=2) == ["0", "1", "0"]
    assert visible(*CUDA, "--workers", "2", listed="MIG-a,MIG-b") == ["MIG-a", "MIG-b"]


@pytest.mark.parametrize("engine", ["cpu", "fake"])
def test_other_engines_ask_for_no_device(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(devices, "ask_driver", lambda: pytest.fail("the driver was asked"))
    assert worker_environments(*options("--engine", engine, "--workers", "2")) == [{}, {}]
    assert worker_environments(*options(*CUDA, "--workers", "0")) == []


@pytest.mark.parametrize(
    ("argv", "found", "words"),
    [
        (
            ("--workers", "2", "--tensor-parallel-size", "2"),
            {"count": 3},
            ("--workers 2 with --tensor-parallel-size 2", "4 CUDA devices", "there are 3"),
        ),
        (
            ("--workers", "2", "--tensor-parallel-size", "2"),
            {"listed": "0,1,-1,2"},
            ("4 CUDA devices", "there are 2 in CUDA_VISIBLE_DEVICES=0,1,-1,2"),
        ),
        (("--tensor-parallel-size", "2"), {"count": 1}, ("--workers 1", "2 CUDA devices", "there are 1")),
        ((), {"count": 0}, ("a CUDA device", "there are 0")),
        ((), {"listed": ""}, ("a CUDA device", "there are 0 in CUDA_VISIBLE_DEVICES=")),
    ],
)
def test_too_few_devices_are_refused_with_the_numbers(
    argv: tuple[str, ...], found: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(NotPossible) as refusal:
        visible(*CUDA, *argv, **found)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_no_device_is_in_two_groups(num_workers: int, size: int) -> None:
    names = [str(number) for number in range(num_workers * size)]
    groups = deal(names, num_workers, size)
    assert [len(group) for group in groups] == [size] * num_workers
    assert [name for group in groups for name in group] == names


@pytest.mark.parametrize(
    ("listed", "names"),
    [("0", ["0"]), (" 2 ,0", ["2", "0"]), ("GPU-a,MIG-b", ["GPU-a", "MIG-b"]), ("-1,0", []), ("1,,2", ["1"]), ("", [])],
)
def test_a_list_ends_where_it_ends_for_cuda(listed: str, names: list[str]) -> None:
    assert listed_devices(listed) == names


@pytest.mark.parametrize(("status", "count", "expected"), [(0, 3, 3), (0, 0, 0), (100, 3, 0)])
def test_the_driver_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, count: int, expected: int
) -> None:
    """One that is made for it. 100: it says that there is no device."""
    source = tmp_path / "driver.cpp"
    source.write_text(A_DRIVER.format(status=status, count=count))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert ask_driver() == expected


def test_a_worker_finds_its_devices_in_its_environment(
    folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every start of it, and no other service does."""
    monkeypatch.setenv(VISIBLE, "4,5,6,7")
    config, given = options(*CUDA, "--workers", "2", "--tensor-parallel-size", "2")
    listeners = open_listeners("127.0.0.1", 0, 1)
    try:
        environments = worker_environments(config, given)
        processes, _ = make_processes(config, given, folder, listeners, None, environments)
    finally:
        listeners.close()
    services = [process for process in processes if process.name != "nats-server"]
    workers = {"worker-0": "4,5", "worker-1": "6,7"}
    for _ in range(2):
        found = {process.name: told_by_child(process.prepare().environment, tmp_path) for process in services}
        assert found == {process.name: workers.get(process.name, "4,5,6,7") for process in services}


def told_by_child(environment: Mapping[str, str], folder: Path) -> str:
    """What a child with this start's environment finds there."""
    log = folder / "child.log"
    log.unlink(missing_ok=True)
    script = f"import os\nprint(os.environ[{VISIBLE!r}])"
    probe = DummyProbe(Dummy(folder, "worker-0", "worker"), log)

    async def run() -> int:
        child = await Child.spawn(Start([sys.executable, "-c", script], probe, environment=environment), log)
        return await child.wait()

    assert asyncio.run(run()) == 0
    return log.read_text().strip()


def test_up_refuses_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VISIBLE, "0,1,2")
    argv = [*CUDA, "--workers", "2", "--tensor-parallel-size", "2", "--port", "0", "--data-dir", str(tmp_path)]
    assert up.main([*argv, "--model", "none-such"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tokenbus up: --workers 2 with --tensor-parallel-size 2 need 4 CUDA devices; there are 3 ")
