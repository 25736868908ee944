"""Findings for people and for programs."""

import math
from dataclasses import asdict

import msgspec
from rich.console import Console
from rich.table import Table

from kernels.check.outcome import Comparison, Findings


def print_tables(findings: Findings, console: Console) -> None:
    """Two tables, what there is to note, the verdict."""
    console.print(f"CUDA kernels: compiled for {findings.arch}, run on {findings.where}", highlight=False, markup=False)
    for note in findings.notes:
        console.print(note, highlight=False, markup=False)
    if findings.compilations:
        console.print(_compilations(findings))
    console.print(_comparisons(findings))
    if findings.copy_gb_per_s is not None:
        console.print(f"a plain copy: {findings.copy_gb_per_s:.0f} GB/s", highlight=False)
    if findings.not_compared:
        console.print(f"compiled but not compared: {', '.join(findings.not_compared)}", highlight=False)
    console.print("all well" if findings.is_good else "FAILED", style="bold green" if findings.is_good else "bold red")


def to_json(findings: Findings) -> str:
    """The same, with "ok"; an error beyond all bounds is null."""
    fields = asdict(findings)
    for comparison in fields["comparisons"]:
        if comparison["error"] is not None and math.isinf(comparison["error"]):
            comparison["error"] = None
    return msgspec.json.format(msgspec.json.encode({"ok": findings.is_good, **fields}), indent=2).decode()


def _compilations(findings: Findings) -> Table:
    table = Table("operation", "kernel", "instances", "registers", "of allowed", "", box=None)
    for each in findings.compilations:
        table.add_row(
            each.operation,
            each.kernel,
            str(each.num_instances),
            "-" if each.registers is None else str(each.registers),
            str(each.max_registers),
            _verdict(each.problem, "compiles"),
        )
    return table


def _comparisons(findings: Findings) -> Table:
    is_timed = any(each.time_us is not None for each in findings.comparisons)
    times = ("us", "GB/s", "of a copy", "TFLOP/s") if is_timed else ()
    table = Table("operation", "case", "of allowed error", *times, "", box=None)
    for each in findings.comparisons:
        error = "-" if each.error is None else f"{each.error:.0%}"
        table.add_row(
            each.operation,
            _plain(each.what),
            error,
            *(_times(each) if is_timed else ()),
            _verdict(each.problem, "equals its reference"),
        )
    return table


def _times(each: Comparison) -> tuple[str, str, str, str]:
    if each.time_us is None or each.gb_per_s is None:
        return "-", "-", "-", "-"
    share = "-" if each.share_of_copy is None else f"{each.share_of_copy:.0%}"
    computed = "-" if each.tflop_per_s is None else f"{each.tflop_per_s:.1f}"
    return f"{each.time_us:.1f}", f"{each.gb_per_s:.0f}", share, computed


def _verdict(problem: str | None, good: str) -> str:
    return good if problem is None else f"[red]{_plain(problem)}[/red]"


def _plain(text: str) -> str:
    return text.replace("[", r"\[")  # or rich takes a shape for a style
