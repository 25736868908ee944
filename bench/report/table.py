"""Figures in a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.core.figures import columns
from bench.core.summary import Summary

FIRST_COLUMN_CHARS = 32
COLUMN_CHARS = 24


def print_table(title: str, rows: Sequence[Summary], times: Sequence[str], console: Console) -> None:
    """One column for each row of results, in as many tables as the width asks for, and what went wrong below."""
    num_columns = max(1, (console.width - FIRST_COLUMN_CHARS) // COLUMN_CHARS)
    for first in range(0, len(rows), num_columns):
        shown = rows[first : first + num_columns]
        table = Table(title=title, title_justify="left", caption="times: p50 / p90 / p99", caption_justify="left")
        table.add_column("", no_wrap=True)
        for row in shown:
            table.add_column(row.name, justify="right", no_wrap=True)
        for name, texts in columns(shown, times).items():
            table.add_row(name, *texts)
        console.print(table)
    for row in rows:
        for error, count in row.errors.items():
            console.print(f"{row.name}: {count} failed: {error}", markup=False)
