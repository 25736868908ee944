"""The report: JSON for programs, markdown for people."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.gpu_check.findings import Cell, Table
from bench.gpu_check.runner import Outcome
from bench.machine import Machine

_GOOD = ("passed", "skipped")


class Report(msgspec.Struct, kw_only=True):
    """device: what describes it, by name. size: of what travelled."""

    name: str
    is_dry: bool
    started_at: str
    device: dict[str, str]
    machine: Machine
    size: str
    seconds: float = 0.0
    parts: list[Outcome] = []

    @property
    def is_good(self) -> bool:
        """Every part passed, or had nothing to do here."""
        return all(part.status in _GOOD for part in self.parts)


def save_report(report: Report, folder: Path) -> Path:
    """Both files; the markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"gpu-{report.name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    file = folder / f"gpu-{report.name}.md"
    file.write_text("\n".join(markdown(report)) + "\n", encoding="utf-8")
    return file


def markdown(report: Report) -> Iterator[str]:
    """Lines: a table of parts, then each part."""
    yield f"# GPU check: {report.device.get('name', 'no device')}"
    yield ""
    if report.is_dry:
        yield "**A dry run: the kernels ran in the emulator, at small shapes. It says nothing of speed.**"
        yield ""
    described = [f"{name} {value}" for name, value in report.device.items() if name != "name"]
    machine = report.machine
    yield f"{report.started_at}, {report.seconds:.0f} s. {'; '.join(described)}"
    yield f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb} GB; {machine.system}; Python {machine.python}."
    yield f"What travels: {report.size}."
    yield ""
    yield from _table(["part", "status", "s", "limit s", "checks"], [_summary(part) for part in report.parts])
    for part in report.parts:
        yield from _part(part)


def _summary(part: Outcome) -> list[Cell]:
    num_good = sum(check.is_good for check in part.found.checks)
    return [part.title, part.status, part.seconds, part.limit_s, f"{num_good} of {len(part.found.checks)}"]


def _part(part: Outcome) -> Iterator[str]:
    yield ""
    yield f"## {part.title}: {part.status}"
    yield ""
    if part.found.skipped:
        yield f"Skipped: {part.found.skipped}."
    for note in part.found.notes:
        yield f"- {note}"
    if part.problem:
        yield from ("", "```", part.problem, "```")
    for table in part.found.tables:
        yield from _titled(table)
    if part.found.checks:
        yield ""
        rows: list[list[Cell]] = [
            [check.what, "yes" if check.is_good else "**NO**", check.detail] for check in part.found.checks
        ]
        yield from _table(["check", "good", ""], rows)


def _titled(table: Table) -> Iterator[str]:
    yield from ("", f"### {table.title}", "")
    yield from _table(table.columns, table.rows)


def _table(columns: list[str], rows: list[list[Cell]]) -> Iterator[str]:
    yield _line(columns)
    yield _line(["---"] * len(columns))
    for row in rows:
        yield _line([_text(cell) for cell in row])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return (
        f"{cell:g}" if isinstance(cell, float) and abs(cell) < 1e5 else str(cell).replace("|", "\\|").replace("\n", " ")
    )
