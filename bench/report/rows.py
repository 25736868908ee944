"""The JSON file of a module that is run by itself (`python -m bench.NAME`)."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.machine import this_machine


def module_command(name: str) -> str:
    """The command line of this process, which runs bench.NAME."""
    return shlex.join(["python", "-m", f"bench.{name}", *sys.argv[1:]])


def save_rows(
    path: Path, name: str, rows: Sequence[Mapping[str, object]], settings: Mapping[str, object] | None = None
) -> None:
    """What bench.NAME measured, with its command and machine. settings: what holds for all rows. Raises OSError."""
    header = {"bench": name, "command": module_command(name), "machine": msgspec.to_builtins(this_machine())}
    path.write_text(json.dumps({**header, **(settings or {}), "rows": rows}, indent=1) + "\n")
