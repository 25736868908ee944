"""`tokenbus bench compare`: several result files side by side, as markdown."""

import argparse
import sys
from pathlib import Path

from bench.core.comparison import comparison
from bench.errors import BenchError
from bench.report.results import load_results

PROG = "tokenbus bench compare"
DESCRIPTION = """Print markdown tables of several result files, one table for each measurement that they hold. Rows of
one name in one file are its rounds: their median round is shown. Ratios are to the first file."""


def main(argv: list[str]) -> int:
    """0, or 1 if a file holds no results."""
    parser = argparse.ArgumentParser(prog=PROG, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON files of --save-result")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead")
    options = parser.parse_args(argv)
    try:
        found = [load_results(path) for path in options.files]
    except BenchError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return 1
    labels = [result.label for result in found]
    # Equal labels would make columns that nobody can tell apart.
    labels = [
        label if labels.count(label) == 1 else path.stem for label, path in zip(labels, options.files, strict=True)
    ]
    text = comparison([(label, result.rows) for label, result in zip(labels, found, strict=True)])
    text = "\n".join([*(f"- {label}: `{each.command}`" for label, each in zip(labels, found, strict=True)), "", text])
    if options.output is not None:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 0
