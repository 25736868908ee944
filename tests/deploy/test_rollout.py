"""Restarting the processes of a running node: who goes first, what lives side by side, what happens when it fails."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deploy.node.folder import DataFolder
from deploy.node.node import Node
from deploy.node.rollout import RestartFailed
from tests.deploy.dummies import BAD_OPTION, DRAINING, GRACEFUL, SLEEP, Dummy, Record
from tests.processes import is_alive, wait_until_gone
from tests.waiting import LIMIT_S, until

NEVER_READY = "import time; time.sleep(60)"
ENDS_BADLY = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n" + SLEEP


class Restarted:
    """A node of dummies, one for each name such as gateway-0; stages: what was reported of restarts."""

    def __init__(self, folder: DataFolder, tmp_path: Path, *names: str) -> None:
        self.folder = folder
        self.dummies = {name: Dummy(tmp_path, name, name.rpartition("-")[0]) for name in names}
        self.record = Record()
        self.node = Node(list(self.dummies.values()), folder, self.record, 5.0)
        self.stages: list[tuple[str, str]] = []
        self.on_stage: Callable[[str, str], None] = lambda process, stage: None

    @property
    def pids(self) -> dict[str, int]:
        return {name: pid for name, pid in self.node.pids.items() if pid is not None}

    async def restart(
        self, *roles: str, rolling: bool = True, goes_on: Callable[[], bool] = lambda: True, ready_s: float = LIMIT_S
    ) -> None:
        await self.node.restart(roles, rolling=rolling, ready_timeout_s=ready_s, report=self._report, goes_on=goes_on)

    def _report(self, process: str, stage: str, pid: int | None) -> None:
        self.stages.append((process, stage))
        self.on_stage(process, stage)

    @property
    def order(self) -> Sequence[str]:
        """Processes in the order in which they got ready."""
        return [process for process, stage in self.stages if stage == "ready"]


async def test_a_replacement_is_ready_before_its_predecessor_is_told_to_stop(
    folder: DataFolder, tmp_path: Path
) -> None:
    made = Restarted(folder, tmp_path, "gateway-0", "worker-0")
    seen: list[tuple[bool, bool, bool]] = []

    def on_stage(process: str, stage: str) -> None:
        if stage == "draining":
            new = made.dummies["gateway-0"].probes[1].file.exists()
            seen.append((new, is_alive(before["gateway-0"]), made.pids["gateway-0"] != before["gateway-0"]))

    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        made.on_stage = on_stage
        await made.restart("gateway")
        assert seen == [(True, True, True)]
        assert made.pids["worker-0"] == before["worker-0"]
        assert int(folder.pid_file("gateway-0").read_text()) == made.pids["gateway-0"]
        assert not is_alive(before["gateway-0"])
    assert made.stages == [("gateway-0", "starting"), ("gateway-0", "draining"), ("gateway-0", "ready")]
    assert made.record.deaths == []
    assert made.node.is_clean


async def test_a_worker_goes_before_its_successor_comes(folder: DataFolder, tmp_path: Path) -> None:
    made = Restarted(folder, tmp_path, "worker-0", "worker-1")
    alive: list[bool] = []

    def on_stage(process: str, stage: str) -> None:
        if stage == "starting":
            alive.append(is_alive(before[process]))

    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        made.on_stage = on_stage
        await made.restart("worker")
        assert not set(made.pids.values()) & set(before.values())
    assert alive == [False, False]
    assert made.order == ["worker-0", "worker-1"]
    assert made.record.deaths == [], "what was asked for is no death"


async def test_the_leading_scheduler_is_the_last_of_its_kind(folder: DataFolder, tmp_path: Path) -> None:
    names = ("gateway-0", "worker-0", "scheduler-0", "scheduler-1", "detokenizer-0", "tokenizer-0")
    made = Restarted(folder, tmp_path, *names)
    made.dummies["scheduler-0"].leads = True
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        await made.restart("gateway", "tokenizer", "worker", "scheduler", "detokenizer")
    assert made.order == ["tokenizer-0", "detokenizer-0", "scheduler-1", "scheduler-0", "worker-0", "gateway-0"]


async def test_all_at_once_starts_each_service_anew(folder: DataFolder, tmp_path: Path) -> None:
    made = Restarted(folder, tmp_path, "gateway-0", "worker-0", "worker-1")
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        await made.restart("gateway", "worker", rolling=False)
        assert not set(made.pids.values()) & set(before.values())
    assert made.stages[:2] == [("worker-0", "draining"), ("worker-1", "draining")]
    assert made.record.deaths == []


@pytest.mark.parametrize(
    ("script", "ready_s", "words"),
    [
        (BAD_OPTION, LIMIT_S, r"new gateway-0 ended with status 2(.|\n)*needs 5 blocks, there are 3"),
        (NEVER_READY, 0.5, "new gateway-0 was not ready within 0.5 s"),
    ],
)
async def test_a_bad_replacement_ends_the_restart_and_the_old_one_serves_on(
    folder: DataFolder, tmp_path: Path, script: str, ready_s: float, words: str
) -> None:
    made = Restarted(folder, tmp_path, "gateway-0", "gateway-1")
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        made.dummies["gateway-0"].script = script
        with pytest.raises(RestartFailed, match=words):
            await made.restart("gateway", ready_s=ready_s)
        assert made.pids == before
        assert await made.node.keepers[0].is_ready()
    assert made.stages == [("gateway-0", "starting")]


async def test_a_process_that_ends_badly_is_told(folder: DataFolder, tmp_path: Path) -> None:
    made = Restarted(folder, tmp_path, "gateway-0", "worker-0")
    made.dummies["worker-0"].script = ENDS_BADLY
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        made.dummies["worker-0"].script = GRACEFUL
        with pytest.raises(RestartFailed, match="all run anew, but worker-0 ended with status 1"):
            await made.restart("gateway", "worker")
        assert not set(made.pids.values()) & set(before.values())


async def test_nothing_more_is_restarted_when_nobody_waits_for_it(folder: DataFolder, tmp_path: Path) -> None:
    made = Restarted(folder, tmp_path, "worker-0", "worker-1")
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        with pytest.raises(RestartFailed, match="nobody waits"):
            await made.restart("worker", goes_on=lambda: not made.order)
        assert made.pids["worker-0"] != before["worker-0"]
        assert made.pids["worker-1"] == before["worker-1"]


async def test_a_predecessor_that_dies_meanwhile_leaves_one_process(folder: DataFolder, tmp_path: Path) -> None:
    made = Restarted(folder, tmp_path, "gateway-0")
    killed: list[int] = []

    def on_stage(process: str, stage: str) -> None:
        if stage == "starting":
            os.kill(before["gateway-0"], signal.SIGKILL)

    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids
        made.on_stage = on_stage
        await made.restart("gateway")
        (keeper,) = made.node.keepers
        await until(lambda: sum(is_alive(child.pid) for child in keeper._alive) == 1, "one process")
        await made.node.wait_ready(LIMIT_S)
        assert is_alive(made.pids["gateway-0"])
        killed = list(made.pids.values())
    assert wait_until_gone(killed) == []


async def test_a_replacement_that_dies_while_its_predecessor_drains_is_started_again(
    folder: DataFolder, tmp_path: Path
) -> None:
    made = Restarted(folder, tmp_path, "gateway-0")
    made.dummies["gateway-0"].script = DRAINING
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids["gateway-0"]
        made.dummies["gateway-0"].script = GRACEFUL
        restarting = asyncio.create_task(made.restart("gateway"))
        await until(lambda: ("gateway-0", "draining") in made.stages)
        replacement = made.pids["gateway-0"]
        os.kill(replacement, signal.SIGKILL)
        await until(lambda: made.pids.get("gateway-0", replacement) != replacement, "a third one")
        assert is_alive(before), "it drains on"
        made.node.hurry()
        await restarting
        assert not is_alive(before)


async def test_a_stop_in_the_middle_of_a_restart_leaves_nothing(folder: DataFolder, tmp_path: Path) -> None:
    made = Restarted(folder, tmp_path, "gateway-0")
    made.dummies["gateway-0"].script = DRAINING
    async with made.node:
        await made.node.wait_ready(LIMIT_S)
        before = made.pids["gateway-0"]
        made.dummies["gateway-0"].script = GRACEFUL
        restarting = asyncio.create_task(made.restart("gateway"))
        await until(lambda: ("gateway-0", "draining") in made.stages)
        after = made.pids["gateway-0"]
        restarting.cancel()
        await asyncio.gather(restarting, return_exceptions=True)
        made.node.hurry()
    assert wait_until_gone([before, after]) == []
    assert made.node.is_clean
