"""The end of every command: table, JSON file, plot."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.core.comparison import median_round, rounds_by_name
from bench.core.figures import TIMES
from bench.errors import BenchError
from bench.options import ResultOptions
from bench.report.plot import check_plotting, save_plot
from bench.report.results import Results, save_results
from bench.report.table import print_table

FILE_CHARS = 160


def check_wishes(options: ResultOptions) -> None:
    """What would fail at the end is told at the start. Raises BenchError."""
    times_of(options)
    if options.save_result or options.result_filename:
        _check_folder("--result-dir", _results_path(options, "results.json").parent)
    if options.plot:
        check_plotting()
        _check_folder("--plot", Path(options.plot).parent)


def _check_folder(option: str, folder: Path) -> None:
    """Make it. Raises BenchError for one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"{option}: {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise BenchError(f"{option}: {folder} cannot be written to")


def _results_path(options: ResultOptions, default_name: str) -> Path:
    return Path(options.result_dir) / (options.result_filename or default_name)


def times_of(options: ResultOptions) -> Sequence[str]:
    """The times that --percentile-metrics names. Raises BenchError."""
    names = [name.strip() for name in options.percentile_metrics.split(",") if name.strip()]
    unknown = [name for name in names if name not in TIMES]
    if unknown:
        raise BenchError(f"--percentile-metrics: {unknown[0]!r} is none of {', '.join(TIMES)}")
    return names


def publish(results: Results, options: ResultOptions) -> int:
    """Exit status: 1 if a request failed that was not refused, else 0. Raises OSError."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else FILE_CHARS)
    rounds = rounds_by_name(results.rows)
    num_rounds = max(len(each) for each in rounds.values())
    shown = [median_round(each) for each in rounds.values()]
    title = f"{results.bench}: {results.label}" + (f", median of {num_rounds} rounds" if num_rounds > 1 else "")
    print_table(title, shown, times_of(options), console)
    if options.save_result or options.result_filename:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        path = _results_path(options, f"{results.label}-{results.bench}-{stamp}.json")
        save_results(results, path)
        console.print(f"Written to {path}", markup=False)
    if options.plot:
        save_plot(title, shown, Path(options.plot))
        console.print(f"Drawn to {options.plot}", markup=False)
    return int(any(row.failed > row.refused for row in results.rows))
