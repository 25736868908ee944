"""Many seeds on all cores."""

import gc
import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from tests.shard.invariants import problems
from tests.shard.scenario import Scenario
from tests.shard.shard import Shard

CHUNK = 10
NUM_TRACEBACK_LINES = 6
# A run makes many small objects and keeps nearly all of them to its end: looking for garbage meanwhile finds none.
GC_THRESHOLD = 200_000


class Result(msgspec.Struct, frozen=True):
    """One seed's run. problem: "" if all held. reasons: ends of sequences; notes: what else happened, counted."""

    seed: int
    problem: str
    faults: dict[str, int]
    reasons: dict[str, int]
    notes: dict[str, int]


def run_seed(seed: int, scenario: Scenario | None = None) -> Result:
    """Run a seed, whatever comes of it."""
    gc.set_threshold(GC_THRESHOLD)
    shard = Shard(seed, scenario)
    try:
        found = problems(shard.run())
    except Exception:  # a core that raises is a finding like any other
        lines = traceback.format_exc().splitlines()
        found = ["\n    ".join(lines[-NUM_TRACEBACK_LINES:])]
    return Result(seed, "; ".join(found[:5]), dict(shard.faults), _reasons(shard), _notes(shard))


def _reasons(shard: Shard) -> dict[str, int]:
    states = shard.ledger.all_requests().values()
    return dict(Counter(str(sequence.reason) for state in states for sequence in state.sequences))


def _notes(shard: Shard) -> dict[str, int]:
    return {
        "records": len(shard.log.archive),
        "refused": shard.log.num_refused,
        "trimmed": shard.log.first_seq - 1,
        "takeovers": len(shard.takeovers),
        "workers fenced": shard.ledger.counts["fence_worker"],
        "poisoned": shard.num_poisoned,
        "steps begun ahead": shard.num_ahead,
        "row errors": shard.num_row_errors,
        "requests repeated": shard.ledger.counts["request_repeated"],
        "returns": shard.num_returns,
    }


def run_many(seeds: Iterable[int], num_processes: int | None = None) -> Iterator[Result]:
    """Results in the order of the seeds, as they come."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes or os.cpu_count(), mp_context=context) as pool:
        yield from pool.map(run_seed, seeds, chunksize=CHUNK)


def report(results: Iterable[Result]) -> str:
    """What failed and how to see it again; "" if nothing did."""
    lines = [f"seed {result.seed}: {result.problem}" for result in results if result.problem]
    if not lines:
        return ""
    first = lines[0].split(":")[0].removeprefix("seed ")
    return "\n".join([f"{len(lines)} seeds failed", *lines, f"replay: python -m tests.shard --seed {first} --trace"])
