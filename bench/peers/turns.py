"""Rounds: every candidate in turn, one running at a time, again and again."""

from collections.abc import Callable, Sequence

import msgspec

from bench.core.plan import Plan
from bench.core.summary import Summary
from bench.errors import BenchError
from bench.peers.candidate import Candidate

Say = Callable[[str], None]


class Measurements(msgspec.Struct):
    """rows: candidate -> what was measured, a row for each plan and round. errors: candidate -> why it was given up."""

    rows: dict[str, list[Summary]]
    errors: dict[str, str]


def measure_in_rounds(
    candidates: Sequence[Candidate],
    warm_plans: Sequence[Plan],
    plans: Callable[[int], Sequence[Plan]],
    num_rounds: int,
    say: Say,
    keep: Callable[[Measurements], object] = lambda _: None,
) -> Measurements:
    """plans: of a round, with prompts of its own, so that no prefix cache helps across rounds. keep: called after every
    turn, so that a long run that is broken off leaves what it has.

    A candidate that cannot be started or fails is given up, with its reason; the others go on.
    """
    found = Measurements({candidate.name: [] for candidate in candidates}, {})
    for index in range(num_rounds):
        for candidate in candidates:
            if candidate.name in found.errors:
                continue
            say(f"round {index + 1} of {num_rounds}: {candidate.name}")
            try:
                found.rows[candidate.name] += _turn(candidate, warm_plans, plans(index), say)
            except BenchError as error:
                found.errors[candidate.name] = str(error)
                say(f"  given up: {error}")
            keep(found)
    return found


def _turn(candidate: Candidate, warm_plans: Sequence[Plan], plans: Sequence[Plan], say: Say) -> list[Summary]:
    rows = []
    with candidate.open() as running:
        for plan in warm_plans:
            summary = running.measure(plan)
            if summary.failed:
                raise BenchError(f"fails: {next(iter(summary.errors))}")
        for plan in plans:
            rows.append(running.measure(plan))
            say(f"  {plan.name}: {rows[-1].output_throughput:,.1f} tokens/s, {rows[-1].failed} failed")
    return rows
