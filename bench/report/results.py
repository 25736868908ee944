"""The JSON file of a run: what was measured, with which command, where."""

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.core.summary import Summary
from bench.errors import BenchError
from bench.machine import Machine, this_machine


class Results(msgspec.Struct, kw_only=True):
    """bench: which subcommand. label: of this run in comparisons. details: what else that subcommand has to say."""

    bench: str
    label: str
    command: str
    started_at: str
    machine: Machine
    rows: list[Summary]
    metadata: dict[str, str] = {}
    details: dict[str, Any] = {}


class ResultsError(BenchError):
    """A file that holds no results; the message names it."""


def new_results(bench: str, label: str, metadata: dict[str, str] | None = None) -> Results:
    """Without rows yet; command and machine are those of this process."""
    words = ["tokenbus", "bench", *sys.argv[2:]] if sys.argv[1:2] == ["bench"] else ["python", *sys.argv]
    return Results(
        bench=bench,
        label=label,
        command=shlex.join(words),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine=this_machine(),
        rows=[],
        metadata=metadata or {},
    )


def save_results(results: Results, path: Path) -> None:
    """Write it, folder included; a file that is there is replaced. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def load_results(path: Path) -> Results:
    """Raises ResultsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ResultsError(f"{path} holds no results of tokenbus bench: {error}") from None
