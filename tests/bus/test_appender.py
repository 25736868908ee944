"""Appends in the background: nothing that was decided is lost, however long the log is away."""

import asyncio

import pytest

from shared.bus import appender
from shared.bus.appender import BackgroundAppender
from shared.log.memory import MemoryLog
from shared.log.port import LogFull, LogUnavailable
from shared.logs import get_logger
from shared.messages.codec import decoder
from shared.messages.pipeline import Done, End

RID = "a" * 32


class MoodyLog(MemoryLog):
    """Refuses appends as moods says, in their order."""

    def __init__(self, moods: list[type[Exception]]) -> None:
        super().__init__(lambda: 0)
        self._moods = moods

    async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
        """See Log.append."""
        if self._moods:
            raise self._moods.pop(0)("not now")
        return await super().append(kind, data, message_id, horizon_s)


@pytest.mark.parametrize("moods", [[], [LogFull], [LogUnavailable], [LogFull, LogUnavailable, LogUnavailable, LogFull]])
async def test_records_are_stored_in_order_once_the_log_takes_them(
    moods: list[type[Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "RETRY_S", 0.0)
    log = MoodyLog(list(moods))
    background = BackgroundAppender(log, get_logger())
    end = End(request_id=RID, reason="rejected", position=0)
    done = Done(request_id=RID, positions=(0,), reasons=("rejected",))
    background.append([(end, "rejected-a"), (done, "done-a")])
    assert background.num_pending == 1
    await background.drain()
    decode = decoder(End | Done)
    assert [decode(data) for _, data, _ in log.records] == [end, done]
    assert background.num_pending == 0


async def test_a_drain_while_the_log_is_away_ends_and_leaves_nothing_running() -> None:
    class AwayLog(MemoryLog):
        """Answers nothing."""

        async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
            """See Log.append."""
            await asyncio.Event().wait()
            raise AssertionError("never")

    background = BackgroundAppender(AwayLog(lambda: 0), get_logger())
    for number in range(3):
        background.append([(End(request_id=f"{number:032x}", reason="deadline"), f"deadline-{number}")])
    await asyncio.wait_for(background.drain(0.05), 10)
    assert background.num_pending == 0
