"""`tokenbus bench convert`: from a gateway's access log to a trace that can be replayed."""

import argparse
import sys
from pathlib import Path

from bench.core.access_log import trace_of
from bench.datasets.timed_trace import write_trace
from bench.log_files import LogFileError, read_lines, with_rotated

PROG = "tokenbus bench convert"
DESCRIPTION = """Make a trace from the access log of a gateway that ran with --access-log --log-format json: when each
request came, its prompt tokens and its output tokens. Replay it with
`tokenbus bench serve --dataset-name timed_trace --dataset-path TRACE`."""
EPILOG = """The log has what was asked of this gateway over HTTP. What was published on NATS, by `tokenbus ask` or
another client, never passes a gateway and is in no access log: a trace of such a node shows a part of its load. Refused
and cancelled requests, and those without a number of tokens, are left out and counted. A request with several prompts
or choices is one line of the trace, with the sums of their tokens."""


def main(argv: list[str]) -> int:
    """0, or 1 if there is nothing to replay."""
    parser = argparse.ArgumentParser(prog=PROG, description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument(
        "logs",
        nargs="+",
        type=Path,
        metavar="LOG",
        help="log files of one or more gateways; what was rotated out of each (LOG.1, LOG.2.gz ...) is read before it",
    )
    parser.add_argument(
        "--no-rotated", action="store_true", help="only the files named, not what was rotated out of them"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="TRACE", help="JSON lines are written there")
    options = parser.parse_args(argv)
    logs = options.logs if options.no_rotated else with_rotated(options.logs)
    names = ", ".join(str(log) for log in logs)
    try:
        trace, num_left_out = trace_of(read_lines(logs))
        if not trace:
            sys.stderr.write(f"{PROG}: no answered request with its numbers of tokens in {names}\n")
            return 1
        write_trace(trace, options.output)
    except LogFileError as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{PROG}: {error.filename}: {error.strerror}\n")
        return 1
    print(f"{len(trace)} requests over {trace[-1].timestamp / 1e3:.1f} s, {num_left_out} left out; read {names}")
    return 0
