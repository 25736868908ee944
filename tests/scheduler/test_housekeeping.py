"""Trimming: what may go, and a full log that gets room again."""

import time

import pytest

from services.scheduler.fencer import Fencer
from services.scheduler.housekeeping import DETOKENIZER_SILENCE_S, Housekeeper, Retention
from shared.log import snapshot
from shared.log.fold import Fold
from shared.log.memory import MemoryLog
from shared.logs import get_logger
from shared.messages.codec import encode
from shared.messages.pipeline import End, Fence

MAX_RECORDS = 20


class House:
    """A log of MAX_RECORDS records with a take-over as its first, a fold of it, and a housekeeper."""

    def __init__(self, *, leads: bool) -> None:
        self.log = MemoryLog(time.time_ns, max_records=MAX_RECORDS)
        self.fold = Fold()
        self.fencer = Fencer(self.log, self.fold)
        self.num_keeps = 0
        self._leads = leads
        self.keeper = Housekeeper(self.log, self.fold, Retention(900.0), self._keep, self._fill, get_logger())

    async def _keep(self) -> bool:
        self.num_keeps += 1
        return self._leads and await self.fencer.append(Fence(kind="keep", leader="s1"))

    async def _fill(self) -> float:
        return self.log.fill

    async def begin(self) -> None:
        await self.log.tail(self.fold, lambda change: self.fencer.on_folded(), lambda: None).start()
        await self.fencer.append(Fence(kind="takeover", leader="s1"))

    async def append(self, num_records: int) -> None:
        for number in range(num_records):
            end = End(request_id=f"{number:032x}", reason="cancel")
            await self.log.append("end", encode(end), f"cancel-{number}")


@pytest.mark.parametrize("num_records", [MAX_RECORDS // 2 + 1, MAX_RECORDS - 2, MAX_RECORDS - 1])
@pytest.mark.parametrize("leads", [True, False])
async def test_rule_11_a_log_that_is_nearly_or_wholly_full_gets_room_and_take_overs_stay_possible(
    num_records: int, leads: bool
) -> None:
    house = House(leads=leads)
    await house.begin()
    await house.append(num_records)
    await house.keeper.run_once()
    assert house.log.fill <= 0.1 and house.num_keeps
    assert await house.fencer.append(Fence(kind="takeover", leader="s2"))
    assert house.fold.leader == "s2"
    fresh = Fold()
    await house.log.tail(fresh, lambda change: None, lambda: None).start()
    assert snapshot.capture(fresh) == snapshot.capture(house.fold)


async def test_rule_11_a_young_log_with_room_is_kept() -> None:
    house = House(leads=True)
    await house.begin()
    await house.append(MAX_RECORDS // 4)
    await house.keeper.run_once()
    assert house.log.first_seq == 1 and not house.num_keeps


def test_rule_11_nothing_is_trimmed_below_the_retention_or_a_live_detokenizer() -> None:
    retention = Retention(10.0)
    assert retention.trimmable(5, 100.0, ignore_age=False) == 0
    assert retention.trimmable(9, 110.0, ignore_age=False) == 5
    retention.on_detokenizer("d1", 3, 110.0)
    assert retention.trimmable(9, 111.0, ignore_age=True) == 3
    assert retention.trimmable(9, 111.0 + DETOKENIZER_SILENCE_S, ignore_age=True) == 9


def test_detokenizers_that_are_gone_are_not_kept_even_where_nobody_trims() -> None:
    retention = Retention(10.0)
    for number in range(100):
        retention.on_detokenizer(f"d{number}", 1, number * 2 * DETOKENIZER_SILENCE_S)
    assert len(retention._detokenizers) == 1
