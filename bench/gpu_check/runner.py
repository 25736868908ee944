"""Runs the parts, each as a process of its own that may not take longer than it has."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Literal

import msgspec

from bench.gpu_check.findings import Found, load_found
from bench.gpu_check.parts import Part

Status = Literal["passed", "failed", "skipped", "timed out", "not run"]

_LEAST_S = 3.0  # that a part needs to begin with anything
_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}  # there is no network, and a part may be killed
_LAST_LINES = 12
_ENDING_S = 3.0
_LOOK_S = 0.1
_DRY_WORKERS = 2


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
    as long as they take. stopped: when set, what runs is ended."""

    folder: Path
    is_dry: bool
    deadline_s: float | None
    stopped: Event = field(default_factory=Event)

    def limit_of(self, part: Part) -> float | None:
        """Seconds that it may take now."""
        if self.deadline_s is None:
            return None
        return min(part.limit_s, self.deadline_s - time.monotonic())


def run_all(parts: Sequence[Part], run: Run, report: Callable[[Outcome], None]) -> list[Outcome]:
    """One after the other, for they measure; in a dry run, which does not, two at a time. report: of each, in order."""
    outcomes = []
    with ThreadPoolExecutor(_DRY_WORKERS if run.is_dry else 1) as pool:
        running = [pool.submit(run_part, part, run, command_of(part, run)) for part in parts]
        try:
            for each in running:
                outcomes.append(each.result())
                report(outcomes[-1])
        except BaseException:
            run.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
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
            command,
            cwd=_ROOT,
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = _wait(process, run, limit_s)
        finally:
            _end(process)
    if status is None:
        return _outcome(part, run, "timed out", begun_s, _last_lines(log))
    if status != 0:
        return _outcome(part, run, "failed", begun_s, f"exit status {status}: {_last_lines(log)}")
    return _outcome(part, run, "passed", begun_s)


def _wait(process: subprocess.Popen[bytes], run: Run, limit_s: float | None) -> int | None:
    """The exit status, None if it takes longer or everything is stopped."""
    end_s = None if limit_s is None else time.monotonic() + limit_s
    while process.poll() is None:
        if run.stopped.wait(_LOOK_S) or (end_s is not None and time.monotonic() >= end_s):
            return None
    return process.returncode


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
