"""python -m bench.peers setup|run: install what a user would pick instead, and measure it in turn with ours."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import workloads
from bench.commands.frame import split
from bench.errors import BenchError
from bench.peers import ours, suites
from bench.peers.environment import Environment, default_folder
from bench.peers.report import PeersReport, markdown, new_report, save
from bench.peers.suites import Suite
from bench.peers.turns import Measurements, measure_in_rounds
from deploy.node.limits import raise_file_limit
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel

PROG = "python -m bench.peers"
DEFAULT_MODEL = "smollm2-135m"
SUITES = ("engine", "control-plane")


def main(argv: Sequence[str]) -> int:
    """0 if all went well; 1 for what cannot be done, or with --require for a goal that was missed."""
    words, node_options = split(argv)
    options = _parser().parse_args(words)
    try:
        return _setup(options) if options.word == "setup" else _run(options, node_options)
    except (BenchError, ModelError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
    except KeyboardInterrupt:
        return 130
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__, allow_abbrev=False)
    words = parser.add_subparsers(dest="word", required=True)
    setup = words.add_parser("setup", allow_abbrev=False, help="make a virtual environment for each peer")
    setup.add_argument("peers", nargs="*", metavar="PEER", help=f"default: {' '.join(suites.INSTALLERS)}")
    setup.add_argument("--again", action="store_true", help="also those that are there")
    run = words.add_parser("run", allow_abbrev=False, help="measure; options of `tokenbus up` go behind --")
    run.add_argument("--suite", choices=SUITES, default="engine")
    run.add_argument(
        "--peers", nargs="+", choices=suites.ENGINE_PEERS, default=list(suites.ENGINE_PEERS), help="engine suite"
    )
    run.add_argument("--ours", nargs="+", choices=list(ours.VARIANTS), default=list(ours.VARIANTS), help="engine suite")
    run.add_argument(
        "--workloads", nargs="+", choices=workloads.NAMES, default=list(workloads.NAMES), help="engine suite"
    )
    run.add_argument("--chat", action="store_true", help="control-plane suite: chats, not completions")
    run.add_argument("--rounds", type=int, default=3, metavar="N")
    run.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    run.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there too")
    run.add_argument("--require", action="store_true", help="exit status 1 if a required goal is missed")
    for command in (setup, run):
        command.add_argument("--folder", type=Path, default=default_folder(), help="of the peers (%(default)s)")
        command.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME")
    return parser


def _setup(options: argparse.Namespace) -> int:
    unknown = [name for name in options.peers if name not in suites.INSTALLERS]
    if unknown:
        raise BenchError(f"no peer {unknown[0]!r}: one of {', '.join(suites.INSTALLERS)}")
    for name in options.peers or suites.INSTALLERS:
        environment = Environment(name, options.folder)
        if options.again or not environment.is_ready:
            suites.INSTALLERS[name](environment)
        print(f"{name}: {environment.folder}", flush=True)
    print(f"model: {suites.hugging_face_folder(options.folder, _model(options))}")
    return 0


def _run(options: argparse.Namespace, node_options: Sequence[str]) -> int:
    raise_file_limit()
    suite = _suite(options, node_options)
    started_s = time.time()

    def report_of(found: Measurements) -> PeersReport:
        report = new_report(options.suite, suite, found, options.rounds, started_s)
        if options.json:
            save(report, options.json)
        return report

    found = measure_in_rounds(suite.candidates, suite.warm_plans, suite.plans, options.rounds, _say, report_of)
    report = report_of(found)
    text = markdown(report)
    print("\n" + text, end="")
    if options.markdown:
        options.markdown.write_text(text)
    return int(options.require and not report.is_met)


def _suite(options: argparse.Namespace, node_options: Sequence[str]) -> Suite:
    root, model = options.folder, _model(options)
    if options.suite == "control-plane":
        return suites.control_plane_suite(root, model, options.chat, node_options)
    cores = sorted(os.sched_getaffinity(0))
    return suites.engine_suite(root, options.peers, options.ours, options.workloads, model, cores, node_options)


def _model(options: argparse.Namespace) -> StoredModel:
    return ModelRepository().ensure(options.model)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
