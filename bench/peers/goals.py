"""What this project demands of itself against each peer. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.core.summary import Summary
from bench.peers.figures import CPU, RESIDENT, THROUGHPUT, TTFT_P50, TTFT_P99, Figure, ratio, rows_named, spread

BEST_OF = " or "


@dataclass(frozen=True, slots=True)
class Goal:
    """ours and plan: candidate and plan. peer: candidate that ours is divided by; several with " or " between them:
    the best of those that were measured; "" for a limit on ours alone. required and stretch: at least for a figure of
    which more is better, else at most."""

    plan: str
    ours: str
    peer: str
    figure: Figure
    required: float
    stretch: float | None = None


LLAMA = "llama.cpp or llama.cpp batched-bench"
ENGINE = (
    Goal("W1", "tokenbus bf16", "vllm", THROUGHPUT, 1.8, 2.5),
    Goal("W2", "tokenbus bf16", "vllm", THROUGHPUT, 1.8, 2.5),
    Goal("W3", "tokenbus bf16", "vllm", THROUGHPUT, 1.3, 1.8),
    *(Goal(plan, "tokenbus bf16", "vllm", each, 1.0) for plan in ("W1", "W2", "W3") for each in (TTFT_P50, TTFT_P99)),
    *(Goal(plan, "tokenbus bf16", "vllm", RESIDENT, 0.5) for plan in ("W1", "W2", "W3")),
    Goal("W2", "tokenbus int8", "vllm", THROUGHPUT, 2.2, 3.0),
    Goal("W1", "tokenbus gguf", "llama.cpp", THROUGHPUT, 1.0, 1.5),
    Goal("W2", "tokenbus gguf", LLAMA, THROUGHPUT, 2.0, 4.0),
    Goal("W3", "tokenbus gguf", LLAMA, THROUGHPUT, 2.0, 4.0),
)
CONTROL_PLANE = (
    Goal("64 streams", "tokenbus", "dynamo", CPU, 1.0),
    Goal("256 streams", "tokenbus", "dynamo", CPU, 1.0),
    Goal("64 streams", "tokenbus", "", CPU, 46.0),
    Goal("256 streams", "tokenbus", "", CPU, 35.0),
    Goal("1 stream", "tokenbus", "", TTFT_P50, 20.0),
    Goal("256 streams", "tokenbus", "", THROUGHPUT, 15900.0, 23900.0),
)


class Verdict(msgspec.Struct, frozen=True):
    """got: ratio or figure; None if it was not measured. status: "stretch", "met", "missed" or "not measured"."""

    plan: str
    ours: str
    peer: str
    figure: str
    required: float
    stretch: float | None
    got: float | None
    status: str


def judge(goals: Sequence[Goal], rows: Mapping[str, Sequence[Summary]]) -> list[Verdict]:
    """rows: candidate -> what was measured. Goals of candidates and plans that were not in the run are left out."""
    verdicts = []
    plans = {row.name for each in rows.values() for row in each}
    for goal in goals:
        asked = [name for name in goal.peer.split(BEST_OF) if name in rows]
        if goal.plan not in plans or goal.ours not in rows or (goal.peer and not asked):
            continue
        ours = rows_named(rows[goal.ours], goal.plan)
        got, peer = _compare(goal, ours, asked, rows)
        verdicts.append(_verdict(goal, peer, got))
    return verdicts


def _compare(
    goal: Goal, ours: Sequence[Summary], peers: Sequence[str], rows: Mapping[str, Sequence[Summary]]
) -> tuple[float | None, str]:
    """What was reached, and against which peer."""
    if not goal.peer:
        own = spread(ours, goal.figure)
        return (own.median if own else None), ""
    found = {
        name: each.of_medians
        for name in peers
        if (each := ratio(ours, rows_named(rows[name], goal.plan), goal.figure)) is not None
    }
    if not found:
        return None, goal.peer
    worst = min if goal.figure.more_is_better else max
    peer = worst(found, key=lambda name: found[name])
    return found[peer], peer


def _verdict(goal: Goal, peer: str, got: float | None) -> Verdict:
    status = "not measured"
    if got is not None:
        status = "met" if _reaches(goal, got, goal.required) else "missed"
        if goal.stretch is not None and _reaches(goal, got, goal.stretch):
            status = "stretch"
    return Verdict(goal.plan, goal.ours, peer, goal.figure.title, goal.required, goal.stretch, got, status)


def _reaches(goal: Goal, got: float, limit: float) -> bool:
    return got >= limit if goal.figure.more_is_better else got <= limit
