"""The whole runner with stand-ins for peers: start, readiness, turns, figures, report, a sure end."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from bench.core.plan import Plan, PlannedRequest, Prompt
from bench.errors import BenchError
from bench.peers.candidate import ServerPeer
from bench.peers.figures import THROUGHPUT
from bench.peers.goals import Goal
from bench.peers.processes import Command, running
from bench.peers.report import PeersReport, markdown, new_report, save
from bench.peers.suites import Suite
from bench.peers.turns import Measurements, measure_in_rounds
from tests.waiting import LIMIT_S

SERVER = Path(__file__).parent / "stand_in_server.py"
NUM_REQUESTS = 4


def plan(name: str = "W1", word: str = "a") -> Plan:
    requests = [PlannedRequest(Prompt(word, (), 3), 5) for _ in range(NUM_REQUESTS)]
    return Plan(name, requests, 2)


def stand_in(name: str, *arguments: str, limit_s: float = LIMIT_S) -> ServerPeer:
    def commands(port: int, _folder: Path) -> Sequence[Command]:
        return [Command([sys.executable, str(SERVER), str(port), *arguments], {"STAND_IN": name})]

    return ServerPeer(
        name=name, backend="openai", model="m", commands=commands, versions={"server": "1"}, ready_limit_s=limit_s
    )


def test_processes_of_a_peer_are_all_watched_and_all_ended() -> None:
    peer = stand_in("peer")
    with peer.open() as served:
        [server] = [each for each in psutil.Process().children() if str(SERVER) in each.cmdline()]
        [child] = server.children()
        summary = served.measure(plan())
        assert (summary.completed, summary.failed) == (NUM_REQUESTS, 0)
        assert summary.total_output_tokens == NUM_REQUESTS * 5
        assert summary.resident_mb["total"] > 0
        both_mb = sum(each.memory_info().rss for each in (server, child)) / 1e6
        assert summary.resident_mb["total"] == pytest.approx(both_mb, rel=0.2)
    assert not server.is_running()
    psutil.wait_procs([child], timeout=LIMIT_S)  # it is nobody's child now: whoever adopts it must reap it first
    assert not child.is_running()


def test_candidates_take_turns_with_plans_of_each_round() -> None:
    said: list[str] = []
    asked: list[int] = []
    kept: list[int] = []

    def plans(index: int) -> Sequence[Plan]:
        asked.append(index)
        return [plan("W1", str(index)), plan("W2", str(index))]

    found = measure_in_rounds(
        [stand_in("ours"), stand_in("peer")],
        [plan("warm")],
        plans,
        2,
        said.append,
        lambda found: kept.append(sum(map(len, found.rows.values()))),
    )
    assert [line for line in said if line.startswith("round")] == [
        "round 1 of 2: ours",
        "round 1 of 2: peer",
        "round 2 of 2: ours",
        "round 2 of 2: peer",
    ]
    assert asked == [0, 0, 1, 1]
    assert kept == [2, 4, 6, 8], "every turn is kept"
    assert found.errors == {}
    for rows in found.rows.values():
        assert [row.name for row in rows] == ["W1", "W2", "W1", "W2"]
        assert all(row.failed == 0 and row.output_throughput > 0 for row in rows)
        assert all(row.cpu_us_per_output_token["total"] >= 0 for row in rows)


def test_candidate_that_breaks_is_given_up_and_the_others_go_on() -> None:
    warm = [plan("warm")]
    ended = stand_in("ended", "no number")
    broken = stand_in("broken", "1")  # answers the question for readiness and nothing after it
    found = measure_in_rounds([ended, broken, stand_in("sound")], warm, lambda _: [plan()], 2, lambda _: None)
    assert set(found.errors) == {"ended", "broken"}
    assert "ValueError" in found.errors["ended"]
    assert "fails" in found.errors["broken"]
    assert {name: len(rows) for name, rows in found.rows.items()} == {"ended": 0, "broken": 0, "sound": 2}


def test_server_that_never_answers_is_not_waited_for_longer_than_its_limit() -> None:
    with pytest.raises(BenchError, match="no answer within"), stand_in("mute", "0", limit_s=0.5).open():
        pytest.fail("it answered")


def test_group_is_ended_when_the_measurement_fails(tmp_path: Path) -> None:
    command = Command([sys.executable, "-c", "import time; time.sleep(600)"])
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError), running([command, command], tmp_path) as groups:
        pids += groups.pids
        raise ZeroDivisionError
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_program_that_is_not_there_is_told() -> None:
    peer = ServerPeer(name="x", backend="openai", model="m", commands=lambda *_: [Command(["/nowhere/server"])])
    with pytest.raises(BenchError, match="/nowhere/server"), peer.open():
        pytest.fail("it started")


def report_of(found: Measurements) -> PeersReport:
    candidates = [stand_in("ours"), stand_in("peer")]
    goals = [Goal("W1", "ours", "peer", THROUGHPUT, 0.001)]
    suite = Suite(candidates, [("ours", "peer")], [], lambda _: [plan()], goals)
    return new_report("engine", suite, found, 1, 0.0)


def test_report_holds_commands_machine_ratios_and_goals(tmp_path: Path) -> None:
    found = measure_in_rounds([stand_in("ours"), stand_in("peer")], [], lambda _: [plan()], 1, lambda _: None)
    report = report_of(found)
    assert report.is_met
    save(report, tmp_path / "new" / "peers.json")
    again = msgspec.json.decode((tmp_path / "new" / "peers.json").read_bytes(), type=PeersReport)
    assert again == report
    document = json.loads((tmp_path / "new" / "peers.json").read_bytes())
    assert document["comparisons"][0]["ratios"]["output tokens/s"]["of_medians"] > 0
    assert "STAND_IN=peer" in document["candidates"]["peer"]["commands"][0]
    assert str(Path.home()) not in document["candidates"]["peer"]["commands"][0]
    text = markdown(report)
    assert "| ours / peer | ours / peer |" in text
    assert "| W1 | output tokens/s | ours | peer |" in text
    assert "machine" in document


def test_report_of_a_run_in_which_the_peer_was_given_up() -> None:
    found = measure_in_rounds([stand_in("ours")], [], lambda _: [plan()], 1, lambda _: None)
    found.rows["peer"] = []
    found.errors["peer"] = "no such file"
    report = report_of(found)
    assert not report.is_met
    assert [each.status for each in report.verdicts] == ["not measured"]
    assert "- peer was given up: no such file" in markdown(report)
