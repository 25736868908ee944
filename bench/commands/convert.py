"""`tokenbus bench convert`: from a gateway's access log to a trace that can be replayed."""

import argparse
import sys
from pathlib import Path

from bench.core.access_log import trace_of
from bench.datasets.timed_trace import write_trace

PROG = "tokenbus bench convert"
DESCRIPTION = """Make a trace from the access log of a gateway that ran with --access-log --log-format json: when each
request came, its prompt tokens and its output tokens. Replay it with
`tokenbus bench serve --dataset-name timed_trace --dataset-path TRACE`."""


def main(argv: list[str]) -> int:
    """0, or 1 if there is nothing to replay."""
    parser = argparse.ArgumentParser(prog=PROG, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="log files of one or more gateways")
    parser.add_argument("--output", type=Path, required=True, metavar="TRACE", help="JSON lines are written there")
    options = parser.parse_args(argv)
    try:
        lines = [line for path in options.logs for line in path.read_bytes().splitlines()]
        trace, num_left_out = trace_of(lines)
        if not trace:
            sys.stderr.write(f"{PROG}: no answered request with its numbers of tokens in {len(lines)} lines\n")
            return 1
        write_trace(trace, options.output)
    except OSError as error:
        sys.stderr.write(f"{PROG}: {error.filename}: {error.strerror}\n")
        return 1
    print(f"{len(trace)} requests over {trace[-1].timestamp / 1e3:.1f} s, {num_left_out} left out")
    return 0
