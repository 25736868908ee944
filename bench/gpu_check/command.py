"""The command line of the check."""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.gpu_check.parts import PARTS, TOTAL_LIMIT_S
from bench.gpu_check.report import Report, save_report
from bench.gpu_check.runner import Outcome, Run, run_all
from bench.gpu_check.size import tree_and_wheels
from bench.machine import this_machine

_ROOT = Path(__file__).parents[2]
_DEVICE_LIMIT_S = 30.0
_RESULTS = _ROOT / "bench" / "results"


def main(arguments: Sequence[str]) -> int:
    """0, 1 if a part did not pass, 2 if there is no device and it is no dry run."""
    begun_s = time.monotonic()
    parser, known = _parser(), [part.name for part in PARTS]
    options = parser.parse_args(arguments)
    for name in options.parts:
        if name not in known:
            parser.error(f"no part {name}; there are {', '.join(known)}")
    device = _device()
    if not device and not options.dry_run:
        sys.stderr.write("no CUDA device here (or torch does not see it); --dry-run does what needs none\n")
        return 2
    signal.signal(signal.SIGTERM, _stop)
    names = options.parts or known
    size = tree_and_wheels(_ROOT).told()
    print(size, flush=True)
    report = Report(
        name=options.name or _default_name(device, options.dry_run),
        is_dry=options.dry_run,
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        device=device,
        machine=this_machine(),
        size=size,
    )
    deadline_s = None if options.dry_run else begun_s + TOTAL_LIMIT_S

    def add(outcome: Outcome) -> None:
        print(f"{outcome.status:9} {outcome.seconds:6.1f} s  {outcome.title}", flush=True)
        report.parts.append(outcome)
        report.seconds = round(time.monotonic() - begun_s, 1)
        save_report(report, options.result_dir)

    with tempfile.TemporaryDirectory(prefix="tokenbus-gpu-check-") as folder:
        run = Run(Path(folder), options.dry_run, deadline_s)
        run_all([part for part in PARTS if part.name in names], run, add)
    print(f"{report.seconds:.0f} s; see {save_report(report, options.result_dir)}")
    return 0 if report.is_good else 1


def _device() -> dict[str, str]:
    """Asked by a process of its own: this one must not hold any of the device's memory. Empty without a device, and
    where there is no torch, which then says so."""
    command = [sys.executable, "-m", "bench.gpu_check.where"]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, timeout=_DEVICE_LIMIT_S, check=False)
    found: dict[str, str] = msgspec.json.decode(done.stdout) if done.returncode == 0 else {}
    return found | _driver() if found else {}


def _driver() -> dict[str, str]:
    """What nvidia-smi says; nothing where it is not."""
    names = {
        "driver_version": "driver",
        "clocks.max.sm": "SM clock at most",
        "clocks.max.memory": "memory clock at most",
        "power.limit": "power limit",
    }
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEVICE_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(names.values(), done.stdout.splitlines()[0].split(", "), strict=False))


def _default_name(device: dict[str, str], is_dry: bool) -> str:
    """Of the files: gpu-NAME."""
    if is_dry:
        return "dry-run"
    words = "".join(letter if letter.isalnum() else "-" for letter in device["name"].lower())
    return "-".join(word for word in words.split("-") if word) or platform.node()


def _stop(number: int, frame: object) -> None:
    """The part that runs is ended on the way out, and what the others found is in the files."""
    os.write(2, b"stopped\n")
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./just gpu-check",
        description="Checks and times everything on a GPU, in less than eight minutes. Ends with 1 if a part did not "
        "pass, with 2 if there is no device.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all: {', '.join(p.name for p in PARTS)}")
    parser.add_argument("--dry-run", action="store_true", help="what needs no device, with the emulator in its place")
    parser.add_argument("--result-dir", type=Path, default=_RESULTS, help="by default bench/results")
    parser.add_argument("--name", help="of the results, gpu-NAME.json and gpu-NAME.md; by default the device's")
    return parser
