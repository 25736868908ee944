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
from tests.waiting import LIMIT_S

RID = "a" * 32


class MoodyLog(MemoryLog):
    """Refuses appends as moods says, in their order."""

    def __init__(self, moods: list[type[Exception]]) -> None:
        super().__init__(lambda: 0)
        self._moods = moods
        self.horizons_s: list[float] = []

    async def append(self, kind: str, data: bytes, message_id: str, horizon_s: float = 60.0) -> int:
        """See Log.append."""
        self.horizons_s.append(horizon_s)
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


@pytest.mark.parametrize("refusal", [LogFull, LogUnavailable])
@pytest.mark.parametrize("num_held", [0, 1, 3, 4])
async def test_a_record_that_holds_no_more_is_not_stored_once_the_log_is_back(
    refusal: type[Exception], num_held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked before each attempt, of which three fail; and no attempt goes on by itself."""
    monkeypatch.setattr(appender, "RETRY_S", 0.0)
    log = MoodyLog([refusal] * 3)
    background = BackgroundAppender(log, get_logger())
    answers = iter([True] * num_held + [False])
    background.append_while(End(request_id=RID, reason="cancel"), "abandoned-a", lambda: next(answers))
    await background.drain()
    assert len(log.records) == (1 if num_held == 4 else 0)
    assert set(log.horizons_s) <= {0.0}


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
    await asyncio.wait_for(background.drain(0.05), LIMIT_S)
    assert background.num_pending == 0
