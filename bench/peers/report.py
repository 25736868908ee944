"""A comparison for people (markdown) and for machines (JSON)."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.core.figures import number
from bench.core.summary import Summary
from bench.machine import Machine, this_machine
from bench.peers.candidate import Description
from bench.peers.figures import FAILED, FIGURES, Figure, Ratio, Spread, ratio, rows_named, spread
from bench.peers.goals import Verdict, judge
from bench.peers.suites import Suite
from bench.peers.turns import Measurements
from bench.report.rows import module_command


class Comparison(msgspec.Struct, frozen=True):
    """Ours against one peer in one plan: figure -> ratio."""

    plan: str
    ours: str
    peer: str
    ratios: dict[str, Ratio]


class PeersReport(msgspec.Struct, frozen=True):
    """rows: candidate -> every round of every plan. Times are milliseconds."""

    suite: str
    command: str
    started_at: str
    rounds: int
    machine: Machine
    candidates: dict[str, Description]
    errors: dict[str, str]
    verdicts: list[Verdict]
    comparisons: list[Comparison]
    rows: dict[str, list[Summary]]

    @property
    def is_met(self) -> bool:
        """Whether no required goal was missed and every candidate ran to the end."""
        return not self.errors and all(each.status in ("met", "stretch") for each in self.verdicts)


def new_report(name: str, suite: Suite, found: Measurements, num_rounds: int, started_s: float) -> PeersReport:
    """started_s: seconds since the epoch."""
    comparisons = [
        Comparison(plan, mine, peer, ratios)
        for plan in _plan_names(found)
        for mine, peer in suite.pairs
        if (ratios := _ratios(rows_named(found.rows[mine], plan), rows_named(found.rows[peer], plan)))
    ]
    return PeersReport(
        suite=name,
        command=module_command("peers"),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started_s)),
        rounds=num_rounds,
        machine=this_machine(),
        candidates={each.name: each.describe() for each in suite.candidates},
        errors=found.errors,
        verdicts=judge(suite.goals, found.rows),
        comparisons=comparisons,
        rows=found.rows,
    )


def save(report: PeersReport, path: Path) -> None:
    """As JSON; the folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def markdown(report: PeersReport) -> str:
    """Medians with spreads, ratios, goals, and how it was measured."""
    machine = report.machine
    lines = [
        f"{report.suite}: medians of {report.rounds} rounds in turn (lowest to highest), {report.started_at}, "
        f"{machine.cpu}, {machine.cores} cores, {', '.join(machine.features)}",
        "",
    ]
    for plan in _plan_names(report):
        lines += [f"## {plan}", "", *_figures_table(report, plan), ""]
        lines += _ratios_table([each for each in report.comparisons if each.plan == plan])
    lines += _goals_table(report.verdicts)
    lines += [f"- {name} was given up: {reason}" for name, reason in report.errors.items()]
    for name, description in report.candidates.items():
        versions = ", ".join(f"{package} {version}" for package, version in description.versions.items())
        lines += [f"- {name} ({versions}):", *(f"  `{command}`" for command in description.commands)]
    return "\n".join(lines) + "\n"


def _plan_names(found: Measurements | PeersReport) -> list[str]:
    return list(dict.fromkeys(row.name for rows in found.rows.values() for row in rows))


def _ratios(ours: Sequence[Summary], peer: Sequence[Summary]) -> dict[str, Ratio]:
    figures = [figure for figure in FIGURES if figure is not FAILED]
    return {figure.title: each for figure in figures if (each := ratio(ours, peer, figure)) is not None}


def _figures_table(report: PeersReport, plan: str) -> list[str]:
    """A column for each candidate."""
    columns = {name: found for name, rows in report.rows.items() if (found := rows_named(rows, plan))}
    lines = _head(["", *columns])
    for figure in FIGURES:
        cells = [_cell(spread(rows, figure)) for rows in columns.values()]
        if any(cells):
            lines.append(_row([figure.title, *cells]))
    return lines


def _ratios_table(comparisons: Sequence[Comparison]) -> list[str]:
    """A column for each pair; bold where ours is better."""
    if not comparisons:
        return []
    lines = _head(["ours / peer", *(f"{each.ours} / {each.peer}" for each in comparisons)])
    for figure in FIGURES:
        cells = [_ratio_cell(each.ratios.get(figure.title), figure) for each in comparisons]
        if any(cells):
            lines.append(_row([figure.title, *cells]))
    return [*lines, ""]


def _goals_table(verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    lines = ["## Goals", "", *_head(["plan", "figure", "ours", "peer", "required", "stretch", "got", ""])]
    for each in verdicts:
        limits = [number(each.required), number(each.stretch), number(each.got)]
        lines.append(_row([each.plan, each.figure, each.ours, each.peer, *limits, each.status]))
    return [*lines, ""]


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|---|" + "---:|" * (len(cells) - 1)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(found: Spread | None) -> str:
    if found is None:
        return ""
    text = number(found.median)
    return text if found.low == found.high else f"{text} ({number(found.low)} to {number(found.high)})"


def _ratio_cell(found: Ratio | None, figure: Figure) -> str:
    if found is None:
        return ""
    text = f"{found.of_medians:.2f}x ({found.low:.2f} to {found.high:.2f})"
    is_better = found.of_medians != 1 and (found.of_medians > 1) == figure.more_is_better
    return f"**{text}**" if is_better else text
