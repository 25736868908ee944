"""Every kernel against its reference, compiled and timed: what `python -m kernels check` does."""

from bench.gpu_check.findings import Cell, Findings
from bench.gpu_check.where import Where
from kernels.check.command import check
from kernels.check.outcome import Comparison
from kernels.cuda.catalogue import CATALOGUE


def run(findings: Findings, where: Where) -> None:
    """All operations, one after the other, so that a slow one hides none of those before it."""
    operations = list(dict.fromkeys(kernels.operation for kernels in CATALOGUE))
    for operation in operations:
        found = check(where.place, arch=None, operations=[operation])
        if operation == operations[0]:
            findings.note(f"Compiled for {found.arch}, run on {found.where}.")
        for compiled in found.compilations:
            what = f"{compiled.operation}: {compiled.num_instances} of {compiled.kernel} compile"
            registers = f"{compiled.registers} registers of {compiled.max_registers}"
            findings.check(what, compiled.problem is None, compiled.problem or registers)
        for each in found.comparisons:
            findings.check(f"{each.operation} {each.what}", each.problem is None, each.problem or _told(each))
            if each.time_us is not None:
                findings.row("Operations alone", **_cells(each))
        for missing in found.not_compared:
            findings.check(f"{missing} is compared", False, "it has no case")


def _cells(each: Comparison) -> dict[str, Cell]:
    share = None if each.share_of_copy is None else f"{each.share_of_copy:.0%}"
    return {
        "operation": each.operation,
        "case": each.what,
        "us": _rounded(each.time_us, 1),
        "GB/s": _rounded(each.gb_per_s, 0),
        "of a copy": share,
        "TFLOP/s": _rounded(each.tflop_per_s, 1),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _told(comparison: Comparison) -> str:
    return "" if comparison.error is None else f"{comparison.error:.0%} of the allowed error"
