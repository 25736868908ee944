"""`tokenbus bench suite`: some of each measurement, one process and one node for each, within some minutes."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.stopping import stopped_by_sigterm

PROG = "tokenbus bench suite"
DESCRIPTION = "Measure the control plane, W1 to W3 and W4 on this machine, and write the results as JSON."
NODE = ("--max-num-seqs", "16", "--max-num-queued-reqs", "16")


def main(argv: list[str]) -> int:
    """0 if all of them ended well."""
    parser = argparse.ArgumentParser(prog=PROG, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--result-dir", default="bench/results", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="of W1 to W3; default: %(default)s")
    parser.add_argument("--plot", action="store_true", help="also draw each; needs the extra `bench`")
    options = parser.parse_args(argv)
    try:
        with stopped_by_sigterm():
            return max([_run(words) for words in commands(Path(options.result_dir), options.rounds, options.plot)])
    except KeyboardInterrupt:
        return 130


def commands(folder: Path, num_rounds: int, plot: bool) -> list[list[str]]:
    """The words of each `tokenbus bench` command. W4's node has a short queue: it refuses instead of waiting."""
    measurements: dict[str, tuple[list[str], Sequence[str]]] = {
        "control-plane": (["control-plane", "--streams", "1", "16", "64", "256"], ()),
        "workloads": (["serve", "--workload", "W1", "W2", "W3", "--num-rounds", str(num_rounds)], NODE[:2]),
        "saturation": (["saturation", "--start-rate", "2", "--rate-factor", "1.5", "--step-s", "8"], NODE),
    }
    return [
        [
            *words,
            *("--label", "tokenbus", "--result-dir", str(folder), "--result-filename", f"{name}.json"),
            *(("--plot", str(folder / f"{name}.png")) if plot else ()),
            *(("--", *node) if node else ()),
        ]
        for name, (words, node) in measurements.items()
    ]


def _run(words: Sequence[str]) -> int:
    """In a process of its own, so that no measurement inherits memory or threads of the one before."""
    command = [str(Path(sys.executable).parent / "tokenbus"), "bench", *words]
    print("$ " + " ".join(["tokenbus", "bench", *words]), flush=True)
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()  # until it has stopped its node
            raise
