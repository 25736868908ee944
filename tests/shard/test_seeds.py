"""A thousand runs of a whole shard on a virtual clock, each a different disaster.

Tokens come from each worker's own entropy and its KV memory is really read, so a log is clean only if the protocol is
right. A failing seed is named with the command that replays it.
"""

import hashlib
import os
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from tests.shard.invariants import problems
from tests.shard.many import Result, report, run_many, run_seed
from tests.shard.scenario import ALL_FAULTS, Scenario
from tests.shard.shard import Shard
from tests.waiting import LIMIT_S

NUM_SEEDS = 1000
NUM_MORE_SEEDS = 4000
ENDS = {"length", "eos", "stop_string", "cancel", "deadline", "error", "rejected", "quarantined"}


def check_many(seeds: range) -> list[Result]:
    results = list(run_many(seeds))
    failed = report(results)
    assert not failed, failed
    return results


@pytest.mark.timeout(900)
def test_a_thousand_seeds() -> None:
    """Also that they see what they are for: each fault, each end, and what is rare."""
    results = check_many(range(NUM_SEEDS))
    faults: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
        reasons.update(result.reasons)
        notes.update(result.notes)
    assert set(faults) == set(ALL_FAULTS)
    assert set(reasons) == ENDS
    assert [name for name, count in notes.items() if count == 0] == []


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_thousands_of_seeds() -> None:
    check_many(range(NUM_SEEDS, NUM_SEEDS + NUM_MORE_SEEDS))


def test_without_fencing_pauses_break_streams() -> None:
    """The negative control: the same world with epochs ignored must not pass."""
    scenario = Scenario(faults=("blink-worker", "blink-scheduler"), fencing=False, limit_s=40.0)
    broken = [seed for seed in range(12) if run_seed(seed, scenario).problem]
    assert len(broken) >= 3, broken
    fenced = msgspec.structs.replace(scenario, fencing=True)
    assert [run_seed(seed, fenced).problem for seed in range(12)] == [""] * 12


def digest(seed: int) -> str:
    """Of all records that a seed's run stores, with their times."""
    shard = Shard(seed).run()
    return hashlib.sha256(msgspec.msgpack.encode(shard.log.archive)).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_a_run(hash_seed: str) -> None:
    """The same bytes in each process, whatever the order of its sets."""
    seeds = range(100, 106)
    code = f"from tests.shard.test_seeds import digest; print([digest(seed) for seed in {seeds}])"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=LIMIT_S
    )
    assert done.stdout.strip() == str([digest(seed) for seed in seeds])
    assert len({digest(seed) for seed in seeds}) == len(seeds)


def test_a_failing_seed_is_named_and_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    ends, breaks = (Result(seed, problem, {}, {}, {}) for seed, problem in ((3, ""), (4, "the log: lost 1")))
    assert report([ends]) == ""
    assert report([ends, breaks]).splitlines() == [
        "1 seeds failed",
        "seed 4: the log: lost 1",
        "replay: python -m tests.shard --seed 4 --trace",
    ]
    trace: list[str] = []
    shard = Shard(4, trace=trace.append).run()
    assert problems(shard) == []
    for word in ("start worker-1", "fault ", "leads, take-over", "-> worker-1 on_plan", "log 1 "):
        assert any(word in line for line in trace), word
    assert shard.log.archive == Shard(4).run().log.archive, "tracing changes nothing"
