"""The socket that controls a node, and the commands that use it."""

import asyncio
import errno
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from deploy.cli import restart, status
from deploy.cli.control import CommandFailed, converse
from deploy.node.control import LIMIT_BYTES, ControlServer
from deploy.node.control_messages import (
    Answer,
    Command,
    Failed,
    Finished,
    ProcessStatus,
    Progress,
    RestartRequest,
    StatusRequest,
)
from deploy.node.folder import DataFolder
from deploy.node.node import Node
from deploy.node.processes import Start
from tests.deploy.dummies import DRAINING, Dummy, Record
from tests.waiting import LIMIT_S, until

_decode = msgspec.json.Decoder(Answer).decode


class Controlled:
    """A ready node of dummies with its control socket."""

    def __init__(self, folder: DataFolder, node: Node, control: ControlServer) -> None:
        self.folder = folder
        self.node = node
        self.control = control

    async def ask(self, command: Command) -> list[Answer]:
        """What converse() yields."""
        return await asyncio.to_thread(lambda: list(converse(str(self.folder.root), command)))

    async def say(self, line: bytes) -> Answer:
        """The first answer to these bytes."""
        reader, writer = await asyncio.open_unix_connection(str(self.folder.control))
        writer.write(line)
        answer = _decode(await asyncio.wait_for(reader.readline(), LIMIT_S))
        writer.close()
        await writer.wait_closed()
        return answer


@pytest.fixture
async def controlled(folder: DataFolder, tmp_path: Path) -> AsyncIterator[Controlled]:
    dummies = [Dummy(tmp_path, name, name.rpartition("-")[0]) for name in ("nats-server-0", "worker-0", "scheduler-0")]
    dummies[2].leads = True
    async with (
        Node(dummies, folder, Record(), 5.0) as node,
        ControlServer(node, folder.control, LIMIT_S) as control,
    ):
        await node.wait_ready(LIMIT_S)
        control.is_open = True
        yield Controlled(folder, node, control)
    assert not folder.control.exists()


def test_only_the_owner_may_use_it(controlled: Controlled) -> None:
    assert stat.S_IMODE(controlled.folder.control.stat().st_mode) == 0o600


@pytest.mark.parametrize(("service", "stays"), [("scheduler", True), ("worker", False)])
async def test_a_restart_on_a_full_disk_is_told(
    controlled: Controlled, monkeypatch: pytest.MonkeyPatch, service: str, stays: bool
) -> None:
    """What is replaced side by side runs on; what has to go first is tried again by the node."""

    def fail() -> Start:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = controlled.node.pids
    (keeper,) = (each for each in controlled.node.keepers if each.process.role == service)
    with monkeypatch.context() as full:
        full.setattr(keeper.process, "prepare", fail)
        with pytest.raises(CommandFailed, match="No space left on device"):
            await controlled.ask(RestartRequest(rolling=True, services=[service]))
        assert (controlled.node.pids == before) == stays
    await until(lambda: keeper.child is not None, "a process")


async def test_status_tells_of_every_process(controlled: Controlled) -> None:
    pids = controlled.node.pids
    assert await controlled.ask(StatusRequest()) == [
        ProcessStatus("nats-server-0", pids["nats-server-0"], ready=True, leading=False, num_restarts=0),
        ProcessStatus("worker-0", pids["worker-0"], ready=True, leading=False, num_restarts=0),
        ProcessStatus("scheduler-0", pids["scheduler-0"], ready=True, leading=True, num_restarts=0),
    ]


async def test_status_counts_deaths(controlled: Controlled) -> None:
    killed = controlled.node.pids["worker-0"]
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: controlled.node.pids["worker-0"] not in (killed, None), "a new one")
    statuses = await controlled.ask(StatusRequest())
    assert [each.num_restarts for each in statuses if isinstance(each, ProcessStatus)] == [0, 1, 0]


async def test_restart_tells_every_stage_and_spares_the_bus_unless_it_is_named(controlled: Controlled) -> None:
    before = controlled.node.pids
    answers = await controlled.ask(RestartRequest(rolling=True))
    pids = controlled.node.pids
    assert answers == [
        Progress("scheduler-0", "starting"),
        Progress("scheduler-0", "draining", before["scheduler-0"]),
        Progress("scheduler-0", "ready", pids["scheduler-0"]),
        Progress("worker-0", "draining", before["worker-0"]),
        Progress("worker-0", "starting"),
        Progress("worker-0", "ready", pids["worker-0"]),
    ]
    assert pids["nats-server-0"] == before["nats-server-0"]
    statuses = await controlled.ask(StatusRequest())
    restarts = [each.num_restarts for each in statuses if isinstance(each, ProcessStatus)]
    assert restarts == [0, 0, 0], "what was asked for is no death"
    await controlled.ask(RestartRequest(services=["nats-server"]))
    assert controlled.node.pids["nats-server-0"] != before["nats-server-0"]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"restart\n",
        b'{"kind":"reboot"}\n',
        b'{"kind":"restart","rolling":"yes"}\n',
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b"x" * 2 * LIMIT_BYTES,
    ],
)
async def test_what_is_no_command_gets_a_reason(controlled: Controlled, line: bytes) -> None:
    answer = await controlled.say(line)
    assert isinstance(answer, Failed) and answer.message.startswith("the command cannot be read")


async def test_one_restart_at_a_time_and_none_before_the_node_is_ready(
    controlled: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        CommandFailed, match="--service: no gpu runs on this node; there are nats-server, scheduler, worker"
    ):
        await controlled.ask(RestartRequest(services=["gpu"]))
    async with controlled.control._restarting:
        with pytest.raises(CommandFailed, match="a restart is under way"):
            await controlled.ask(RestartRequest())
    controlled.control.is_open = False
    with pytest.raises(CommandFailed, match="still starting"):
        await controlled.ask(RestartRequest())


async def test_a_failed_restart_says_why(controlled: Controlled) -> None:
    controlled.node.keepers[2].process.script = "raise SystemExit('no such option')"  # type: ignore[attr-defined]
    with pytest.raises(CommandFailed, match=r"new scheduler-0 ended with status 1(.|\n)*no such option"):
        await controlled.ask(RestartRequest(rolling=True))


async def test_a_client_that_goes_ends_the_restart_after_the_process_at_hand(controlled: Controlled) -> None:
    before = controlled.node.pids
    reader, writer = await asyncio.open_unix_connection(str(controlled.folder.control))
    writer.write(msgspec.json.encode(RestartRequest(rolling=True)) + b"\n")
    await reader.readline()
    writer.close()
    await writer.wait_closed()
    await until(lambda: controlled.node.pids["scheduler-0"] != before["scheduler-0"], "the process at hand")
    await until(lambda: not controlled.control._restarting.locked(), "the end of the restart")
    assert controlled.node.pids["worker-0"] == before["worker-0"]


async def test_a_stop_of_the_node_ends_a_restart_with_a_word(folder: DataFolder, tmp_path: Path) -> None:
    async with Node([Dummy(tmp_path, "gateway-0", "gateway", DRAINING)], folder, Record(), 0.1) as node:
        async with ControlServer(node, folder.control, LIMIT_S) as control:
            await node.wait_ready(LIMIT_S)
            control.is_open = True
            controlled = Controlled(folder, node, control)
            asking = asyncio.create_task(controlled.ask(RestartRequest(rolling=True)))
            await until(lambda: len(node.keepers[0]._alive) == 2, "two side by side")
        with pytest.raises(CommandFailed, match="the node is stopping"):
            await asking


async def test_a_folder_with_a_long_path_works_too(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / ("long" * 20) / ("path" * 20))
    folder.open()
    async with Node([Dummy(tmp_path, "worker-0", "worker")], folder, Record(), 5.0) as node:
        async with ControlServer(node, folder.control, LIMIT_S):
            await node.wait_ready(LIMIT_S)
            answers = await asyncio.to_thread(lambda: list(converse(str(folder.root), StatusRequest())))
            assert len(answers) == 1
    folder.close()


@pytest.mark.parametrize("command", [status, restart])
@pytest.mark.parametrize("leftover", [False, True])
def test_without_a_node_the_commands_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: object, leftover: bool
) -> None:
    if leftover:  # of a node that was killed
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "control.sock"))
    assert command.main(["--data-dir", str(tmp_path)]) == 1  # type: ignore[attr-defined]
    assert capsys.readouterr().err.endswith(
        f": no node runs on {tmp_path}; start `tokenbus up`, or give another --data-dir\n"
    )


async def test_the_commands_print_what_happens(controlled: Controlled, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--data-dir", str(controlled.folder.root)]
    before = controlled.node.pids["worker-0"]
    assert await asyncio.to_thread(restart.main, [*where, "--rolling", "--service", "worker"]) == 0
    pid = controlled.node.pids["worker-0"]
    assert capsys.readouterr().out.splitlines() == [
        "Restarting",
        f"worker-0 draining (process {before})",
        "worker-0 starting",
        f"worker-0 ready (process {pid})",
        "Restarted.",
    ]
    assert await asyncio.to_thread(status.main, where) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["worker-0", str(pid), "ready", "0"] in lines
    assert any(line[0] == "scheduler-0" and line[2:5] == ["ready,", "leads", "0"] for line in lines)


def test_messages_end_with_finished_or_failed() -> None:
    """What older commands would not understand must stay readable: the tags are the protocol."""
    assert msgspec.json.encode(Finished()) == b'{"kind":"finished"}'
    assert msgspec.json.encode(Failed("why")) == b'{"kind":"failed","message":"why"}'
