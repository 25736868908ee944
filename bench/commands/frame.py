"""What the subcommands have in common: options before --, a node's options after it, errors in one line."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from bench.core.goodput import Objective
from bench.errors import BenchError
from bench.options import ResultOptions
from bench.report.publish import check_wishes
from bench.report.results import Results, new_results
from bench.session import pairs
from bench.stopping import stopped_by_sigterm
from shared.config import ConfigError, build, fail, make_parser, read_options

Options = TypeVar("Options", bound=ResultOptions)


def run(
    name: str, kind: type[Options], description: str, argv: list[str], command: Callable[[Options, Sequence[str]], int]
) -> int:
    """Read the options of `tokenbus bench NAME` and call command(options, options of the node).

    2 for a bad option, 1 for what cannot be done, each told in one line; else what the command returns.
    """
    prog = f"tokenbus bench {name}"
    own, node_options = split(argv)
    parser = make_parser(kind, prog, description)
    try:
        options = build(kind, read_options(kind, parser, own))
    except ConfigError as error:
        fail(prog, str(error))
    try:
        check_wishes(options)
        with stopped_by_sigterm():
            return command(options, node_options)
    except BenchError as error:
        sys.stderr.write(f"{prog}: {error}\n")
    except OSError as error:
        sys.stderr.write(f"{prog}: {error.filename or ''} {error.strerror or error}\n")
    except KeyboardInterrupt:
        return 130
    return 1


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and behind the first `--`."""
    if "--" not in argv:
        return list(argv), []
    place = argv.index("--")
    return list(argv[:place]), list(argv[place + 1 :])


def start_results(bench: str, options: ResultOptions) -> Results:
    """Empty results with the label that was asked for. Raises BenchError."""
    return new_results(bench, options.label or options.backend, pairs(options.metadata, "--metadata"))


def objective_of(words: Sequence[str]) -> Objective | None:
    """None if there is no --goodput. Raises ObjectiveError."""
    return Objective.parse(words) if words else None
