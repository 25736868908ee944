"""The judging parts of the chaos run, on made-up runs: each must find what it is there for."""

import asyncio
import sys
from array import array
from pathlib import Path

import pytest

from tests.chaos import go_heap, heap
from tests.chaos.faults import ALL_KINDS, NATS_SERVER, SERVICES, FaultDraw
from tests.chaos.heap import heap_diffs, probed_processes
from tests.chaos.ledger import Entry, Ledger, Truth, differences
from tests.chaos.options import Options
from tests.chaos.part import deaths
from tests.chaos.processes import SLACK_S, slope, was_hit
from tests.chaos.resting import excess
from tests.chaos.stalls import FaultRecord, Stall, StallWatch, attribute, kills_alone
from tests.chaos.verdict import lines

RIGHT = [5, 6, 7, 8, 9]


def words(token_ids: list[int]) -> str:
    return "".join(f" {token}" for token in token_ids)


def read_by_client(
    token_ids: list[int], outcome: str = "finished", billed: int | None = None, text: str | None = None
) -> Ledger:
    """A ledger in which one stream received these tokens, and the log holds RIGHT."""
    ledger = Ledger(words)
    entry = Entry("key", len(RIGHT), 0.0, request_id="r1", finish_reason="length", num_billed=billed)
    ledger.begin(entry)
    ledger.on_request("r1")
    entry.token_ids.extend(token_ids)
    entry.text.append(words(token_ids) if text is None else text)
    entry.outcome = outcome
    ledger.end(entry)
    ledger.on_done(Truth("r1", 1, array("i", RIGHT), "length", len(RIGHT)))
    ledger.close()
    return ledger


def findings(ledger: Ledger) -> dict[str, int]:
    return {name: number for name, number in ledger.counts.items() if number and name in WRONG}


WRONG = (
    *("lost", "missing", "duplicated", "foreign", "reordered", "refused", "billed wrong", "cut short"),
    *("text differs", "reason differs", "without outcome", "unknown to the log", "unknown to any client"),
)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (RIGHT, {}),
        ([5, 6, 8, 9], {"missing": 1}),
        ([5, 6, 6, 7, 8, 9], {"duplicated": 1}),
        ([5, 6, 77, 8, 9], {"missing": 1, "foreign": 1}),
        ([6, 5, 7, 8, 9], {"reordered": 2}),
        ([], {"missing": 5}),
    ],
)
def test_every_difference_between_client_and_log_is_found(read: list[int], found: dict[str, int]) -> None:
    ledger = read_by_client(read)
    assert findings(ledger) == found
    assert bool(ledger.evidence) == bool(found)


def test_a_stream_that_failed_or_was_billed_otherwise_is_found() -> None:
    assert findings(read_by_client(RIGHT[:2], outcome="failed")) == {"lost": 1}
    assert findings(read_by_client(RIGHT, billed=4)) == {"billed wrong": 1}
    assert findings(read_by_client(RIGHT, text=words(RIGHT) + " 9")) == {"text differs": 1}


def test_requests_without_a_counterpart_are_found() -> None:
    ledger = Ledger(words)
    unknown = Entry("a", 5, 0.0, request_id="never logged", outcome="finished")
    refused = Entry("b", 5, 0.0, outcome="failed")
    for entry in (unknown, refused):
        ledger.begin(entry)
        ledger.end(entry)
    ledger.on_request("no outcome")
    ledger.on_request("nobody's")
    ledger.on_done(Truth("nobody's", 2, array("i"), "length", 0))
    ledger.close()
    expected = {"unknown to the log": 1, "refused": 1, "without outcome": 1, "unknown to any client": 1}
    assert findings(ledger) == expected


def test_differences_count_each_token() -> None:
    assert differences(array("i", [1, 1, 2]), array("i", [1, 2, 3])) == {
        "missing": 1,
        "duplicated": 1,
        "foreign": 0,
        "reordered": 0,
    }


def kill(number: int, service: str, at: float, healed_at: float) -> FaultRecord:
    return FaultRecord(number, "kill", service, f"{service}-0", at, {}, healed_at)


def test_a_stall_belongs_to_the_kill_before_it_and_to_none_when_two_are_open() -> None:
    faults = [kill(0, "worker", 10.0, 12.0), kill(1, "scheduler", 15.0, 21.0), kill(2, "gateway", 20.0, 22.0)]
    stalls = [Stall("a", 9.95, 11.2), Stall("b", 15.0, 16.0), Stall("c", 20.1, 20.8), Stall("d", 40.0, 41.0)]
    found = attribute(stalls, faults)
    assert {service: [number for number, _ in pairs] for service, pairs in found.clean.items()} == {
        "worker": [0],
        "scheduler": [1],
    }
    assert dict(found.mixed) == {"kill gateway": [pytest.approx(0.7)]}
    assert [stall.key for stall in found.unexplained] == ["d"]
    assert kills_alone(faults) == {"worker": 1, "scheduler": 1, "gateway": 0}


def test_the_watch_counts_tokens_and_keeps_long_gaps_only() -> None:
    watch = StallWatch()
    for now in (10.0, 10.1, 11.5, 12.2):
        watch.on_tokens("a", 3, now)
    assert [round(stall.seconds, 1) for stall in watch.stalls] == [1.4, 0.7]
    assert watch.tokens_per_s(9.5, 13.0) == pytest.approx(12 / 3)


def test_faults_are_the_same_for_the_same_seed_and_reach_every_victim() -> None:
    victims = (*SERVICES, NATS_SERVER)
    first, second = (FaultDraw(7, ALL_KINDS, victims) for _ in range(2))
    drawn = [first.next() for _ in range(400)]
    assert drawn == [second.next() for _ in range(400)]
    assert {(fault.kind, fault.services[0]) for fault in drawn} >= {("kill", victim) for victim in victims}
    assert all(0.95 <= fault.seconds <= 1.45 for fault in drawn if fault.kind == "blink")
    assert not any(fault.services[0] == NATS_SERVER for fault in drawn if fault.kind in ("blink", "stall"))
    with pytest.raises(ValueError, match="no faults"):
        FaultDraw(7, ("nonsense",), victims)


def holdings(name: str, **changed: float) -> dict[str, dict[str, float]]:
    gauges = {"tokenbus_http_requests_running": 0.0, "tokenbus_asyncio_tasks": 30.0, "tokenbus_bus_subscriptions": 17.0}
    return {name: {**gauges, "open files": 20.0, **changed}}


def test_what_is_held_beyond_the_baseline_or_not_told_is_named() -> None:
    baseline = holdings("gateway-0")
    assert excess(holdings("gateway-1", tokenbus_asyncio_tasks=31.0), baseline) == []
    assert len(excess(holdings("gateway-0", tokenbus_http_requests_running=1.0), baseline)) == 1
    assert len(excess(holdings("gateway-0", tokenbus_asyncio_tasks=60.0), baseline)) == 1
    assert len(excess({"gateway-0": {}}, baseline)) == 4
    assert len(excess(holdings("gateway-0"), {"gateway-0": {}})) == 3
    assert len(excess({"nats-server": {"open files": 90.0}}, {"nats-server": {"open files": 20.0}})) == 1


def test_only_a_fault_of_late_on_the_same_process_excuses_its_end() -> None:
    faults = [kill(0, "worker", 10.0, 12.0)]
    assert was_hit(faults, "worker-0", 10.5)
    assert was_hit(faults, "worker-0", 12.0 + SLACK_S)
    assert not was_hit(faults, "worker-0", 13.0 + SLACK_S)
    assert not was_hit(faults, "worker-1", 10.5)
    assert not was_hit(faults, "worker-0", 9.0)


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([(t, 3.0 * t + 1) for t in range(10)]) == pytest.approx(3.0)
    assert slope([(1.0, 5.0)]) == 0.0


def test_ends_of_processes_are_read_from_what_the_node_says() -> None:
    text = "worker-0 died (killed by signal 9), starting it again at once\ngateway-1 died (exit status 1), starting\n"
    assert deaths(text) == {"gateway-1": {"exit status 1": 1}, "worker-0": {"killed by signal 9": 1}}


def test_a_part_that_did_not_end_fails() -> None:
    assert [line.holds for line in lines(Options(), {"main": {"error": "it broke"}})] == [False]


async def test_a_heap_diff_names_the_line_that_keeps_memory(tmp_path: Path) -> None:
    program = tmp_path / "grows.py"
    lines = ["import time", "kept = []", "while not print('.', flush=True):", " time.sleep(0.001)"]
    program.write_text("\n".join([*lines, " kept.append(bytearray(10000))", ""]))
    with probed_processes(tmp_path):
        process = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()  # it runs, and so is able to answer
        diffs = await heap_diffs(tmp_path, {"grows": process.pid}, seconds=0.3)
    finally:
        process.kill()
        await process.communicate()
    assert str(program) in diffs["grows"].splitlines()[1]


def test_owners_in_a_go_heap_are_the_servers_own_functions() -> None:
    text = (
        "heap profile: 2: 300 [9: 900] @ heap/524288\n"
        "1: 200 [3: 600] @ 0x1 0x2\n#\t0x1\truntime.makemap+0x5\t/go/map.go:1\n"
        "#\t0x2\tgithub.com/nats-io/nats-server/v2/server.(*fileStore).load+0x9\t/go/filestore.go:2\n\n"
        "0: 0 [6: 300] @ 0x3\n#\t0x3\tgithub.com/nats-io/nats-server/v2/server.(*client).parse+0x1\t/go/parser.go:3\n\n"
        "# HeapAlloc = 12345\n"
    )
    heap = go_heap.parse(7, text)
    assert (heap.live_bytes, dict(heap.owners)) == (12345, {"server.(*fileStore).load": 200})
    later = go_heap.GoHeap(7, 22345, heap.owners + heap.owners)
    assert go_heap.difference(heap, later).splitlines() == [
        "live heap 0.0 -> 0.0 MB",
        "+200 bytes  server.(*fileStore).load",
    ]


def test_a_heap_diff_names_files_without_where_they_lie() -> None:
    text = f'File "{heap.ROOT}/shared/service.py"\nFile "{sys.base_prefix}/lib/python3.11/asyncio/locks.py"'
    assert heap.without_places(text) == 'File "shared/service.py"\nFile "lib/python3.11/asyncio/locks.py"'
