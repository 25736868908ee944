"""log verify finds each kind of wrong, and finds nothing where nothing is wrong."""

import time

import pytest

from shared.log.memory import MemoryLog
from shared.log.verify import Report, verify
from shared.messages.codec import encode
from shared.messages.pipeline import Done, Fence
from tests.log.records import PROMPT, prefix_hash, request, rows

RID = "a" * 32


async def report_of(*frames: list[tuple[int, int, int, int]], done: Done | None = None) -> Report:
    """A log with one request (sequence 512) and these frames of one worker."""
    log = MemoryLog(time.time_ns)
    await log.append_fence(encode(Fence(kind="takeover", leader="s1")), 0)
    await log.append("req", encode(request(RID, max_tokens=2)), "r")
    for step, entries in enumerate(frames, 1):
        log.append_frame(encode(rows("w1", 1, step, *entries)), "")
    if done is not None:
        await log.append("end", encode(done), "d")
    return await verify(log)


FIRST = (512, 0, 9, prefix_hash(PROMPT, []))
SECOND = (512, 1, 8, prefix_hash(PROMPT, [9]))


async def test_rule_21_a_whole_log_is_clean() -> None:
    done = Done(request_id=RID, positions=(2,), reasons=("length",))
    report = await report_of([FIRST], [SECOND], done=done)
    assert report.clean and report.num_records == 5
    assert report.requests[RID].token_ids == [9, 8] and report.requests[RID].finish_reason == "length"


@pytest.mark.parametrize(
    "frames, field",
    [
        ([[SECOND]], "lost"),
        ([[FIRST], [FIRST]], "duplicated"),
        ([[(999 << 8, 0, 9, 0)]], "foreign"),
        ([[(512, 0, 9, 1)]], "prefix_mismatched"),
    ],
)
async def test_rule_21_what_is_wrong_is_found(frames: list[list[tuple[int, int, int, int]]], field: str) -> None:
    report = await report_of(*frames)
    assert getattr(report, field) == 1 and not report.clean


async def test_rule_21_an_overdue_outcome_is_lost() -> None:
    log = MemoryLog(time.time_ns)
    await log.append("req", encode(request(RID, max_tokens=2)), "r")
    report = await verify(log)
    assert report.clean, "its deadline is ahead"
    log = MemoryLog(lambda: 5 * 10**18)
    await log.append("req", encode(request(RID, max_tokens=2)), "r")
    assert (await verify(log)).lost == 1
