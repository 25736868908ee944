"""Figures in a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.core.figures import columns
from bench.core.summary import Summary


def print_table(title: str, rows: Sequence[Summary], times: Sequence[str], console: Console) -> None:
    """One column for each row of results, and what went wrong below."""
    table = Table(title=title, title_justify="left", caption="times: p50 / p90 / p99", caption_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row.name, justify="right")
    for name, texts in columns(rows, times).items():
        table.add_row(name, *texts)
    console.print(table)
    for row in rows:
        for error, count in row.errors.items():
            console.print(f"{row.name}: {count} failed: {error}", markup=False)
