"""`python -m tests.chaos`: faults on real processes. Exit status 0 if everything that is required held, else 1.

The seed is printed first; the same seed draws the same faults and lengths. What went wrong stands in the folder that
is printed last: ledger entries, fault history, logs of all processes.
"""

import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos import parts
from tests.chaos.machine import describe_machine
from tests.chaos.options import Options, parse
from tests.chaos.scorecard import markdown
from tests.chaos.verdict import Line, lines

RUNNERS: dict[str, Callable[[Options, Path, Callable[[str], None]], Awaitable[dict[str, Any]]]] = {
    "main": parts.run_main,
    "losses": parts.run_losses,
    "single": parts.run_single,
    "model": parts.run_model,
    "soak": parts.run_soak,
}

STOPPED = 130


def main(argv: list[str]) -> int:
    """Run the parts, print the verdict, write what was asked for."""
    options = parse(argv)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tokenbus-chaos-"))
    say(f"seed {options.seed}; logs and evidence in {folder}")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(run(options, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("stopped before the end; nothing is written")
        return STOPPED
    found = lines(options, results)
    this = {
        "command": "python -m tests.chaos " + " ".join(argv),
        "seed": options.seed,
        **describe_machine(),
        "verdict": [asdict(line) for line in found],
        "parts": results,
    }
    write_json(folder / "result.json", [this])
    runs = [*(run for run in read_runs(options.json) if not run["parts"].keys() & results.keys()), this]
    if options.json:
        write_json(options.json, runs)
    if options.write:
        options.write.write_text(markdown(runs))
    return report(found, folder)


def read_runs(path: Path | None) -> list[dict[str, Any]]:
    """The runs of other parts that the result file holds, e.g. those of an earlier soak."""
    if path is None or not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return runs


def write_json(path: Path, runs: list[dict[str, Any]]) -> None:
    """The result file."""
    path.write_text(json.dumps({"runs": runs}, indent=1, default=str) + "\n")


def report(found: list[Line], folder: Path) -> int:
    """Print every line; 0 if none failed. A folder without evidence of anything wrong is removed."""
    for line in found:
        mark = {True: "PASS", False: "FAIL", None: "  - "}[line.holds]
        say(f"{mark} {line.part:7} {line.what}: required {line.required}, measured {line.measured}")
    num_failed = sum(line.holds is False for line in found)
    if num_failed or not found:
        say(f"{num_failed} of {len(found)} failed; evidence in {folder}/result.json, logs beside it")
        return 1
    say(f"all {len(found)} held")
    shutil.rmtree(folder)
    return 0


async def run(options: Options, folder: Path) -> dict[str, dict[str, Any]]:
    """The results of all parts; a part that could not run holds its error."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results: dict[str, dict[str, Any]] = {}
    for name in ("soak",) if options.hours else options.parts:
        try:
            results[name] = await RUNNERS[name](options, folder / name, say)
        except Exception as error:
            say(f"part {name} ended early: {error!r}")
            results[name] = {"error": "".join(traceback.format_exception(error))}
    return results


def say(text: str) -> None:
    """One line with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
