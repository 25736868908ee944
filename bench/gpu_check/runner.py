"""Runs the parts, each as a process of its own that may not take longer than it has."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from bench.gpu_check.findings import Found, load_found
from bench.gpu_check.parts import Part

Status = Literal["passed", "failed", "skipped", "timed out", "not run"]

_LEAST_S = 3.0  # that a part needs to begin with anything
_ROOT = Path(__file__).parents[2]
_LAST_LINES = 12
_ENDING_S = 3.0


class Outcome(msgspec.Struct, kw_only=True):
    """Of one part. problem: the last lines that it wrote, if it ended otherwise than by itself."""

    name: str
    title: str
    status: Status
    seconds: float
    limit_s: float
    found: Found
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """folder: for what parts write. deadline_s: for all of them, by time.monotonic; None in a dry run, whose parts take
    as long as they take."""

    folder: Path
    is_dry: bool
    deadline_s: float | None

    def limit_of(self, part: Part) -> float | None:
        """Seconds that it may take now."""
        if self.deadline_s is None:
            return None
        return min(part.limit_s, self.deadline_s - time.monotonic())


def run_all(parts: Sequence[Part], run: Run, report: Callable[[Outcome], None]) -> list[Outcome]:
    """One after the other, for they measure."""
    outcomes = []
    for part in parts:
        outcome = run_part(part, run, command_of(part, run))
        report(outcome)
        outcomes.append(outcome)
    return outcomes


def command_of(part: Part, run: Run) -> list[str]:
    """Of its process."""
    words = [sys.executable, "-m", "bench.gpu_check.part", part.name, str(_file_of(part, run))]
    return [*words, "--dry-run"] if run.is_dry else words


def _file_of(part: Part, run: Run) -> Path:
    return run.folder / f"{part.name}.json"


def run_part(part: Part, run: Run, command: Sequence[str]) -> Outcome:
    """Whatever happens to it."""
    limit_s, begun_s = run.limit_of(part), time.monotonic()
    if limit_s is not None and limit_s < _LEAST_S:
        return _outcome(part, run, "not run", begun_s, "no time was left")
    log = run.folder / f"{part.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return _outcome(part, run, "timed out", begun_s, _last_lines(log))
        finally:
            _end(process)
    if status != 0:
        return _outcome(part, run, "failed", begun_s, f"exit status {status}: {_last_lines(log)}")
    return _outcome(part, run, "passed", begun_s)


def _outcome(part: Part, run: Run, status: Status, begun_s: float, problem: str = "") -> Outcome:
    found = load_found(_file_of(part, run))
    if status == "passed" and not all(check.is_good for check in found.checks):
        status = "failed"
    elif status == "passed" and found.skipped:
        status = "skipped"
    return Outcome(
        name=part.name,
        title=part.title,
        status=status,
        seconds=round(time.monotonic() - begun_s, 1),
        limit_s=part.limit_s,
        found=found,
        problem=problem,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started, which is in its session: gently first, so that a node stops its services."""
    for number, seconds in ((signal.SIGTERM, _ENDING_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-_LAST_LINES:])
