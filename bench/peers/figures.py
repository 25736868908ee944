"""What is compared, and the arithmetic of it: medians over rounds, spreads, ratios. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.core.summary import Summary, figure_of


@dataclass(frozen=True, slots=True)
class Figure:
    """field and part: where a summary has it (bench.core.summary.figure_of)."""

    title: str
    field: str
    part: str
    more_is_better: bool = False


THROUGHPUT = Figure("output tokens/s", "output_throughput", "", more_is_better=True)
TTFT_P50 = Figure("TTFT p50 ms", "ttft", "p50")
TTFT_P99 = Figure("TTFT p99 ms", "ttft", "p99")
ITL_P50 = Figure("ITL p50 ms", "itl", "p50")
ITL_P99 = Figure("ITL p99 ms", "itl", "p99")
CPU = Figure("CPU us per output token", "cpu_us_per_output_token", "total")
RESIDENT = Figure("resident MB", "resident_mb", "total")
FAILED = Figure("failed", "failed", "")
FIGURES = (THROUGHPUT, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, CPU, RESIDENT, FAILED)


class Spread(msgspec.Struct, frozen=True):
    """Of one figure over rounds."""

    median: float
    low: float
    high: float
    num: int


class Ratio(msgspec.Struct, frozen=True):
    """Ours divided by the peer's. of_medians counts; low and high: of the ratios round by round."""

    of_medians: float
    low: float
    high: float


def value(row: Summary, figure: Figure) -> float | None:
    """None if it was not measured."""
    return figure_of(row, figure.field, figure.part)


def spread(rounds: Sequence[Summary], figure: Figure) -> Spread | None:
    """None if no round has it."""
    found = [each for row in rounds if (each := value(row, figure)) is not None]
    return Spread(median(found), min(found), max(found), len(found)) if found else None


def ratio(ours: Sequence[Summary], peer: Sequence[Summary], figure: Figure) -> Ratio | None:
    """None if one side has no such figure, or the peer's is 0. Rounds are paired in their order."""
    our_spread, peer_spread = spread(ours, figure), spread(peer, figure)
    if our_spread is None or peer_spread is None or not peer_spread.median:
        return None
    pairs = [(value(one, figure), value(other, figure)) for one, other in zip(ours, peer, strict=False)]
    each = [one / other for one, other in pairs if one is not None and other]
    of_medians = our_spread.median / peer_spread.median
    return Ratio(of_medians, min(each, default=of_medians), max(each, default=of_medians))


def rows_named(rows: Sequence[Summary], name: str) -> list[Summary]:
    """The rounds of one plan."""
    return [row for row in rows if row.name == name]
