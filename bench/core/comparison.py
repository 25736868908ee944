"""Several runs side by side: one table for each row name that they share."""

from collections.abc import Sequence
from statistics import median

from bench.core.figures import columns, number
from bench.core.summary import Summary, figure_of

RATIOS = (
    ("output tokens/s", "output_throughput", ""),
    ("TTFT p50", "ttft", "p50"),
    ("TTFT p99", "ttft", "p99"),
    ("ITL p99", "itl", "p99"),
    ("CPU us/token", "cpu_us_per_output_token", "total"),
    ("resident MB", "resident_mb", "total"),
)


def comparison(runs: Sequence[tuple[str, Sequence[Summary]]]) -> str:
    """Markdown. runs: label and rows; the first run is what the others are divided by.

    Rows of one name in one run are its rounds: the figures shown are those of its median round by output tokens/s, and
    ratios are those of the medians.
    """
    grouped = [(label, rounds_by_name(rows)) for label, rows in runs]
    names = dict.fromkeys(name for _, rounds in grouped for name in rounds)
    parts = []
    for name in names:
        having = [(label, rounds[name]) for label, rounds in grouped if name in rounds]
        parts.append("\n".join([f"## {name}", "", *_table(having)]))
    return "\n\n".join(parts) + "\n"


def rounds_by_name(rows: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Rows of one name are rounds of the same measurement."""
    grouped: dict[str, list[Summary]] = {}
    for row in rows:
        grouped.setdefault(row.name, []).append(row)
    return grouped


def median_round(rounds: Sequence[Summary]) -> Summary:
    """The round in the middle by output tokens/s, the slower one of two."""
    ordered = sorted(rounds, key=lambda row: row.output_throughput)
    return ordered[(len(ordered) - 1) // 2]


def median_figure(rounds: Sequence[Summary], field: str, part: str) -> float | None:
    """The median of one figure over the rounds that have it. part: as in figure_of."""
    found = [value for row in rounds if (value := figure_of(row, field, part)) is not None]
    return median(found) if found else None


def _table(having: Sequence[tuple[str, Sequence[Summary]]]) -> list[str]:
    labels = [f"{label} ({len(rounds)} rounds)" if len(rounds) > 1 else label for label, rounds in having]
    rows = columns([median_round(rounds) for _, rounds in having])
    if len(having) > 1:
        rows |= _ratios(having)
    head = "| | " + " | ".join(labels) + " |"
    rule = "|---|" + "---:|" * len(labels)
    return [head, rule, *(f"| {name} | " + " | ".join(texts) + " |" for name, texts in rows.items())]


def _ratios(having: Sequence[tuple[str, Sequence[Summary]]]) -> dict[str, list[str]]:
    """Each run's figure divided by the first run's."""
    first = having[0]
    rows = {}
    for title, field, part in RATIOS:
        base = median_figure(first[1], field, part)
        texts = []
        for _, rounds in having:
            value = median_figure(rounds, field, part)
            texts.append("" if value is None or not base else f"{number(value / base)}x")
        if base and any(texts[1:]):
            rows[f"{title} / {first[0]}"] = texts
    return rows
