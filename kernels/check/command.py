"""The command line of the check."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from kernels.check.case import Case
from kernels.check.cases import all_cases
from kernels.check.outcome import Findings
from kernels.check.places import EMULATOR, NoPlace, Place, current_device, emulator
from kernels.check.report import print_tables, to_json
from kernels.check.run import DeviceClock, compare_all, compile_all
from kernels.cuda.catalogue import CATALOGUE, Kernels

if TYPE_CHECKING:
    from kernels.cuda.compiler import Compiled  # which needs CuPy

_DEFAULT_ARCH = "sm_90"
_WIDTH_OF_FILES = 140


def main(arguments: Sequence[str]) -> int:
    """0, 1 if something failed, 2 if nothing could be checked."""
    options = _parser().parse_args(arguments)
    notes = []
    try:
        place = None if options.dry_run else current_device()
        if place is None:
            place = emulator(options.loader)
            notes.append(_why_emulated(options.dry_run))
        findings = check(place, options.arch, options.operations, notes, options.all)
    except NoPlace as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        sys.stdout.write(f"{to_json(findings)}\n")
    else:
        print_tables(findings, Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES))
    return 0 if findings.is_good else 1


def check(
    place: Place,
    arch: str | None,
    operations: Sequence[str],
    notes: Sequence[str] = (),
    compiles_all: bool = False,
) -> Findings:
    """operations: by name, none for all. arch: where the place has none of its own. compiles_all: further instances
    too. Raises NoPlace for an operation that is not there."""
    arch = place.arch or arch or _DEFAULT_ARCH
    catalogue, cases = _chosen(operations, all_cases(place.size))
    on_device = place.arch is not None
    clock = DeviceClock(place.device) if on_device else None
    copy_gb_per_s = clock.copy_gb_per_s() if clock is not None else None
    findings = Findings(
        where=place.name,
        arch=arch,
        not_compared=sorted({kernels.operation for kernels in catalogue} - {case.operation for case in cases}),
        notes=list(notes),
        copy_gb_per_s=copy_gb_per_s,
    )
    if compiles_all:
        catalogue = [replace(kernels, instances=[*kernels.instances, *kernels.further]) for kernels in catalogue]
    catalogue = [kernels for kernels in catalogue if kernels.instances]
    findings.compilations.extend(compile_all(catalogue, lambda kernels: _compile(kernels, arch, place)))
    findings.comparisons.extend(compare_all(cases, place.load, place.device, clock, copy_gb_per_s))
    return findings


def _compile(kernels: Kernels, arch: str, place: Place) -> "Compiled":
    from kernels.cuda.cubin_cache import CubinCache  # which needs CuPy

    compiled = CubinCache().get(kernels.source, kernels.instances, arch)
    if place.arch is not None:
        place.load(kernels.source, kernels.instances)  # from the cache, onto the device
    return compiled


def _chosen(operations: Sequence[str], cases: Sequence[Case]) -> tuple[list[Kernels], list[Case]]:
    known = {kernels.operation for kernels in CATALOGUE}
    for operation in operations:
        if operation not in known:
            raise NoPlace(f"no operation {operation}; there are {', '.join(sorted(known))}")
    wanted = set(operations) or known
    return (
        [kernels for kernels in CATALOGUE if kernels.operation in wanted],
        [case for case in cases if case.operation in wanted],
    )


def _why_emulated(was_asked: bool) -> str:
    reason = "A dry run" if was_asked else "No CUDA device here"
    return f"{reason}: the kernels run in the emulator, at small shapes. It tells whether they are right, not how fast."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels check",
        description="Compiles the CUDA kernels, compares each operation with its reference and times it. Ends with 1 "
        "if something failed, with 2 if nothing could be checked.",
    )
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help="by default all")
    parser.add_argument("--dry-run", action="store_true", help="in the emulator, even where there is a device")
    parser.add_argument("--all", action="store_true", help="compile kernels of rare shapes too: takes minutes")
    parser.add_argument("--json", action="store_true", help="write JSON in place of tables")
    parser.add_argument("--arch", help=f"what to compile for without a device; by default {_DEFAULT_ARCH}")
    parser.add_argument(
        "--loader", default=EMULATOR, metavar="MODULE:NAME", help="of an emulator; default: %(default)s"
    )
    return parser
