"""The process of one part: python -m bench.gpu_check.part NAME FILE [--dry-run]."""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from bench.gpu_check.findings import Findings
from bench.gpu_check.parts import PARTS, part_of
from bench.gpu_check.where import Where


def main() -> None:
    """What goes wrong ends the process with a traceback, and what was found until then is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("file", type=Path, help="where findings go")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    run: Callable[[Findings, Where], None] = importlib.import_module(
        f"bench.gpu_check.{part_of(options.name).module}"
    ).run
    run(Findings(options.file), Where.find(options.dry_run))


if __name__ == "__main__":
    main()
