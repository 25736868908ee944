"""`tokenbus bench WORD`: a word chooses what is measured; its module is imported only then. Options alone are those of
the suite."""

import importlib
import sys
from collections.abc import Callable

PROG = "tokenbus bench"
DEFAULT = "suite"
COMMANDS = {
    "serve": ("serve", "requests that arrive in time: datasets, fixed workloads, replays of logs"),
    "throughput": ("throughput", "all requests at once, until the last one ends"),
    "latency": ("latency", "one batch of equal requests, again and again"),
    "control-plane": ("control_plane", "CPU per output token of each process, with a fake engine"),
    "saturation": ("saturation", "an open loop at rising rates: the knee, and what is beyond it (W4)"),
    DEFAULT: ("suite", "some of each in a few minutes, into bench/results; also what options without a command mean"),
    "compare": ("compare", "several result files as one markdown comparison"),
    "convert": ("convert", "a gateway's access log to a trace for serve --dataset-name timed_trace"),
}


def main(argv: list[str]) -> int:
    """The exit status; 2 for an unknown word."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0].startswith("-"):
        argv = [DEFAULT, *argv]
    if argv[0] not in COMMANDS:
        print(f"{PROG}: unknown command {argv[0]!r}; `{PROG} --help` lists them", file=sys.stderr)
        return 2
    module = importlib.import_module(f"bench.commands.{COMMANDS[argv[0]][0]}")
    run: Callable[[list[str]], int] = module.main
    return run(argv[1:])


def usage() -> str:
    """What `tokenbus bench --help` prints."""
    lines = [f"usage: {PROG} COMMAND [options] [-- options of tokenbus up]", ""]
    lines += ["Measure Tokenbus, or any server with OpenAI's API.", "", "commands:"]
    lines += [f"  {name:14} {text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", f"`{PROG} COMMAND --help` shows the options of each; docs/BENCHMARKS.md tells how they measure."]
    return "\n".join(lines)
