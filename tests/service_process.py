"""One service as a process of its own, on a repository with one tiny model."""

import subprocess
import sys
from pathlib import Path


def command(service: str, repository: Path, *options: str) -> list[str]:
    """python -m services.<service> on the model `tiny` of this repository."""
    fixed = ("--model", "tiny", "--model-repository", str(repository), "--log-format", "json")
    return [sys.executable, "-m", f"services.{service}", *fixed, *options]


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start it; what it says goes to log."""
    with log.open("wb") as file:
        return subprocess.Popen(arguments, stdout=file, stderr=file)
