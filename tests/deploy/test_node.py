"""A node keeps processes running and ends them all, in order, whatever happens to it."""

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.node.folder import DataFolder, FolderInUse
from deploy.node.node import Node, StartFailed
from deploy.node.processes import Start
from tests.deploy.dummies import (
    BAD_OPTION,
    CRASH,
    DRAINING,
    SLEEP,
    STUBBORN,
    Dummy,
    Record,
)
from tests.processes import is_alive, wait_until_gone
from tests.waiting import LIMIT_S, until


def make_node(folder: DataFolder, processes: Sequence[Dummy], drain_s: float = 10.0) -> tuple[Node, Record]:
    record = Record()
    return Node(processes, folder, record, drain_s), record


def running(node: Node) -> dict[str, int]:
    return {name: pid for name, pid in node.pids.items() if pid is not None}


async def test_logs_and_pids_lie_in_the_folder(folder: DataFolder, tmp_path: Path) -> None:
    node, _ = make_node(folder, [Dummy(tmp_path, "worker-0", "worker")])
    async with node:
        await node.wait_ready(LIMIT_S)
        assert int(folder.pid_file("worker-0").read_text()) == running(node)["worker-0"]
    assert folder.log("worker-0").read_text() == "hello\n"
    assert not folder.pid_file("worker-0").exists()
    assert node.is_clean


async def test_killed_process_starts_again_at_once(folder: DataFolder, tmp_path: Path) -> None:
    dummies = [Dummy(tmp_path, "worker-0", "worker"), Dummy(tmp_path, "gateway-0", "gateway")]
    node, record = make_node(folder, dummies)
    async with node:
        await node.wait_ready(LIMIT_S)
        before = running(node)
        dummies[0].probes[0].file.unlink()
        os.kill(before["worker-0"], signal.SIGKILL)
        await node.wait_ready(LIMIT_S)
        after = running(node)
        assert after["worker-0"] != before["worker-0"]
        assert after["gateway-0"] == before["gateway-0"]
    assert record.deaths == [("worker-0", -signal.SIGKILL, 0.0)]
    assert wait_until_gone([*before.values(), *after.values()]) == []


async def test_stops_in_drain_order(folder: DataFolder, tmp_path: Path) -> None:
    roles = ["nats-server", "detokenizer", "worker", "gateway", "scheduler", "tokenizer"]
    node, record = make_node(folder, [Dummy(tmp_path, role, role) for role in roles])
    async with node:
        await node.wait_ready(LIMIT_S)
    assert record.stopped == ["gateway", "tokenizer", "worker", "scheduler", "detokenizer", "nats-server"]
    assert node.is_clean


@pytest.mark.parametrize("hurry", [False, True])
async def test_a_second_sigterm_ends_what_drains_too_long(folder: DataFolder, tmp_path: Path, hurry: bool) -> None:
    """After the drain limit, or when a person does not want to wait for it."""
    dummies = [Dummy(tmp_path, "gateway-0", "gateway", DRAINING), Dummy(tmp_path, "worker-0", "worker", DRAINING)]
    node, record = make_node(folder, dummies, drain_s=1000 if hurry else 0.1)
    async with node:
        await node.wait_ready(LIMIT_S)
        if hurry:
            node.hurry()
    assert node.is_clean
    assert record.stopped == ["gateway", "worker"]
    for dummy in dummies:
        assert folder.log(dummy.name).read_text().split() == ["hello", "draining", "hurrying"]


async def test_stubborn_process_is_killed_in_the_end(
    folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.node.child.KILL_AFTER_S", 0.2)
    node, _ = make_node(folder, [Dummy(tmp_path, "worker-0", "worker", STUBBORN)], drain_s=0.1)
    async with node:
        await node.wait_ready(LIMIT_S)
        pids = running(node)
    assert not node.is_clean
    assert wait_until_gone(list(pids.values())) == []


async def test_listeners_are_closed_before_the_gateways_drain(folder: DataFolder, tmp_path: Path) -> None:
    """Whoever comes now is refused at once and can go elsewhere."""
    gateway = Dummy(tmp_path, "gateway-0", "gateway", DRAINING)
    alive: list[bool] = []
    node = Node([gateway], folder, Record(), 0.1, lambda: alive.append(is_alive(node.pids["gateway-0"] or 0)))
    async with node:
        await node.wait_ready(LIMIT_S)
    assert alive == [True]


async def test_default_action_of_sigterm_is_a_clean_end(folder: DataFolder, tmp_path: Path) -> None:
    node, _ = make_node(folder, [Dummy(tmp_path, "worker-0", "worker", SLEEP)])
    async with node:
        await node.wait_ready(LIMIT_S)
    assert node.is_clean


async def test_what_a_process_is_at_is_told_until_it_is_ready(folder: DataFolder, tmp_path: Path) -> None:
    """A start may take minutes: whoever watches sees that it goes on."""
    worker = Dummy(tmp_path, "worker-0", "worker", "import time\nwhile True: time.sleep(60)")
    gateway = Dummy(tmp_path, "gateway-0", "gateway")
    worker.state = "loading"
    node, record = make_node(folder, [worker, gateway])
    async with node:
        ready = asyncio.ensure_future(node.wait_ready(LIMIT_S))
        await until(lambda: record.waiting and record.waiting[-1] == {"worker-0": "loading"}, "the gateway")
        worker.state = "warming up"
        await until(lambda: record.waiting[-1] == {"worker-0": "warming up"}, "what the worker is at")
        worker.probes[0].file.touch()
        await ready
    assert record.waiting[-3:] == [{"worker-0": "loading"}, {"worker-0": "warming up"}, {}]


async def test_hopeless_start_fails_with_its_reason(folder: DataFolder, tmp_path: Path) -> None:
    dummies = [Dummy(tmp_path, "gateway-0", "gateway"), Dummy(tmp_path, "worker-0", "worker", BAD_OPTION)]
    node, _ = make_node(folder, dummies)
    with pytest.raises(StartFailed, match=r"worker-0 ended with status 2(.|\n)*needs 5 blocks, there are 3"):
        async with node:
            await node.wait_ready(LIMIT_S)
    assert running(node) == {}


async def test_crash_loop_fails_the_start_after_three_deaths(folder: DataFolder, tmp_path: Path) -> None:
    node, record = make_node(folder, [Dummy(tmp_path, "worker-0", "worker", CRASH)])
    with pytest.raises(StartFailed, match=r"worker-0 ended with status 1(.|\n)*boom"):
        async with node:
            await node.wait_ready(LIMIT_S)
    assert [delay for _, _, delay in record.deaths] == [0.0, 0.1, 0.2]


class OnFullDisk(Dummy):
    """Cannot be prepared while the disk is full."""

    is_full = False

    def prepare(self) -> Start:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", f"{self.name}.toml")
        return super().prepare()


async def test_a_process_that_dies_while_the_disk_is_full_is_tried_again_and_no_other_ends(
    folder: DataFolder, tmp_path: Path
) -> None:
    worker, gateway = OnFullDisk(tmp_path, "worker-0", "worker"), Dummy(tmp_path, "gateway-0", "gateway")
    node, record = make_node(folder, [worker, gateway])
    async with node:
        await node.wait_ready(LIMIT_S)
        before = running(node)
        worker.is_full = True
        os.kill(before["worker-0"], signal.SIGKILL)
        await until(lambda: len(record.failed_starts) > 1, "more than one try")
        assert record.deaths == [("worker-0", -signal.SIGKILL, 0.0)]
        assert {(process, "No space left" in reason) for process, reason, _ in record.failed_starts} == {
            ("worker-0", True)
        }
        worker.is_full = False
        await until(lambda: len(running(node)) == 2, "a start")
        assert running(node)["gateway-0"] == before["gateway-0"]
    assert node.is_clean


async def test_a_start_that_is_impossible_fails_with_its_reason(folder: DataFolder, tmp_path: Path) -> None:
    worker = OnFullDisk(tmp_path, "worker-0", "worker")
    worker.is_full = True
    node, _ = make_node(folder, [worker])
    with pytest.raises(StartFailed, match=r"worker-0 cannot be started: .*No space left on device"):
        async with node:
            await node.wait_ready(LIMIT_S)


async def test_start_that_takes_too_long_fails(folder: DataFolder, tmp_path: Path) -> None:
    node, _ = make_node(folder, [Dummy(tmp_path, "worker-0", "worker", "import time; time.sleep(60)")])
    with pytest.raises(StartFailed, match="worker-0 not ready within"):
        async with node:
            await node.wait_ready(0.01)
    assert running(node) == {}


async def test_missing_command_is_told(folder: DataFolder, tmp_path: Path) -> None:
    class Missing(Dummy):
        def prepare(self) -> Start:
            return Start(["/no/such/command"], super().prepare().probe)

    node, _ = make_node(folder, [Missing(tmp_path, "worker-0", "worker")])
    with pytest.raises(StartFailed, match="/no/such/command: No such file"):
        async with node:
            await node.wait_ready(LIMIT_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_death_of_the_node_leaves_no_process(number: int, tmp_path: Path) -> None:
    node = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.deploy.dummies", str(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert node.stdout is not None
    pids = [int(word) for word in (await node.stdout.readline()).split()]
    assert len(pids) == 3
    assert all(is_alive(pid) for pid in pids)
    node.send_signal(number)
    await node.wait()
    assert await asyncio.to_thread(wait_until_gone, pids) == []


def test_a_folder_is_its_owners_alone(tmp_path: Path) -> None:
    for name, mode in (("new", 0o700), ("there", 0o750)):
        if name == "there":
            (tmp_path / name).mkdir(mode)
        data = DataFolder(tmp_path / name)
        data.open()
        assert stat.S_IMODE(data.root.stat().st_mode) == mode
        data.close()


def test_a_folder_serves_one_node_at_a_time(folder: DataFolder) -> None:
    with pytest.raises(FolderInUse, match=str(folder.root)):
        DataFolder(folder.root).open()
    folder.write_urls("http.urls", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    assert (folder.root / "http.urls").read_text() == "http://127.0.0.1:1\nhttp://127.0.0.1:2\n"
    folder.log("worker-0").write_text("old")
    folder.close()
    again = DataFolder(folder.root)
    again.open()
    assert not (folder.root / "http.urls").exists()
    assert (folder.root / "logs" / "worker-0.log").read_text() == "old", "a start that fails takes no log away"
    again.rotate_logs()
    assert (folder.root / "logs" / "worker-0.log.1").read_text() == "old"
    again.close()
