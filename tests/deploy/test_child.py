"""One run of a process: what it is given, and how it is told to end."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from deploy.node.child import Child
from deploy.node.processes import Start
from tests.deploy.dummies import DRAINING, Dummy, DummyProbe
from tests.waiting import until

LONG_S = 1000.0
TIMER_SLACK = Path("/proc/self/timerslack_ns")


async def test_a_stop_during_a_stop_does_not_end_the_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is told to stop while a restart waits for a gateway's last streams: they still have their time."""
    ready, log = tmp_path / "ready", tmp_path / "log"
    probe = DummyProbe(Dummy(tmp_path, "gateway-0", "gateway"), ready)
    child = await Child.spawn(Start([sys.executable, "-c", DRAINING.format(ready=str(ready))], probe), log)
    sent: list[int] = []
    send = child.send

    def note(number: int) -> None:
        sent.append(number)
        send(number)

    monkeypatch.setattr(child, "send", note)
    try:
        await until(ready.exists, "the process")
        restarting = asyncio.create_task(child.stop(LONG_S, asyncio.Event()))
        await until(lambda: "draining" in log.read_text(), "its drain")
        restarting.cancel()
        hurry = asyncio.Event()
        stopping = asyncio.create_task(child.stop(LONG_S, hurry))
        await asyncio.wait({restarting})
        assert sent == [signal.SIGTERM]
        hurry.set()
        assert await stopping
        assert sent == [signal.SIGTERM, signal.SIGTERM]
    finally:
        child.kill()
        await child.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="timer slack is of Linux")
@pytest.mark.parametrize("slack_ns", [0, 700_000])
async def test_sleeps_may_end_as_late_as_was_said(tmp_path: Path, slack_ns: int) -> None:
    ready, log = tmp_path / "ready", tmp_path / "log"
    script = f"from pathlib import Path\nprint(Path({str(TIMER_SLACK)!r}).read_text())\nopen({str(ready)!r}, 'w')"
    probe = DummyProbe(Dummy(tmp_path, "gateway-0", "gateway"), ready)
    child = await Child.spawn(Start([sys.executable, "-c", script], probe, timer_slack_ns=slack_ns), log)
    assert await child.wait() == 0
    assert int(log.read_text()) == (slack_ns or int(TIMER_SLACK.read_text()))  # noqa: ASYNC240  # a file of the kernel's, without a disk
