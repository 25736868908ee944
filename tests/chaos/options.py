"""Options of `python -m tests.chaos`."""

import argparse
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import ALL_KINDS, NATS_SERVER, SERVICES

MODEL = "smollm2-135m"
SOAK_FAULTS_EVERY_S = 60.0


@dataclass(slots=True, kw_only=True)
class Options:
    """minutes: of the part with faults. storm: requests of the cancel storm, 0 for none. hours: of a soak, 0 for a run
    with faults. parts: which parts run. faults: kinds of them; services: those that may be hit. judges_speed: whether
    goodput and lengths of stalls count, which a machine that is busy with other work cannot promise."""

    seed: int = field(default_factory=lambda: secrets.randbelow(10**6))
    minutes: float = 5.0
    hours: float = 0.0
    every_s: float = 5.0
    baseline_s: float = 30.0
    streams: int = 24
    max_tokens: int = 500
    step_ms: float = 20.0
    engine: str = "fake"
    faults: tuple[str, ...] = tuple(ALL_KINDS)
    services: tuple[str, ...] = (*SERVICES, NATS_SERVER)
    replicas: int = 2
    storm: int = 10_000
    storm_at_once: int = 64
    parts: tuple[str, ...] = ("main", "losses", "single", "model")
    fencing: bool = True
    judges_speed: bool = True
    json: Path | None = None
    write: Path | None = None
    folder: Path | None = None

    def node_options(self, workers: int | None = None, *more: str) -> list[str]:
        """Options of `tokenbus up` for a node of these processes."""
        engine = ["--engine", "fake", "--fake-mode", "chained", "--fake-step-ms", f"{self.step_ms:g}"]
        counts = [
            text
            for service in SERVICES
            for text in (f"--{service}s", str(workers if workers and service == "worker" else self.replicas))
        ]
        fencing = [] if self.fencing else ["--no-fencing"]
        # a log and a prefix cache that are full within minutes, so that memory has a level to stay at
        bounded = ["--log-retention-s", "120", "--snapshot-interval-s", "10", "--kv-cache-memory-bytes", "400000000"]
        return [*(engine if self.engine == "fake" else ["--engine", "cpu"]), *counts, *bounded, *fencing, *more]


def parse(argv: list[str]) -> Options:
    """Options from the command line; ends the process with a message on a bad one."""
    own = Options()
    parser = argparse.ArgumentParser(prog="./just chaos", description="Faults on real processes, and what held.")
    parser.add_argument("--seed", type=int, default=own.seed, help="of faults and load (default: drawn and printed)")
    parser.add_argument("--minutes", type=float, default=own.minutes, help="of the part with faults (default 5)")
    parser.add_argument("--hours", type=float, default=0.0, help="soak: that long, memory sampled every 10 s")
    parser.add_argument("--every-s", type=float, help=f"seconds between faults (default 5, soak {SOAK_FAULTS_EVERY_S})")
    parser.add_argument("--baseline-s", type=float, default=own.baseline_s, help="without faults first (default 30)")
    parser.add_argument("--streams", type=int, default=own.streams, help="clients at once (default 24)")
    parser.add_argument("--max-tokens", type=int, default=own.max_tokens, help="longest answer (default 500)")
    parser.add_argument("--engine", choices=["fake", "cpu"], default="fake", help="cpu: the real model")
    parser.add_argument("--faults", default=",".join(own.faults), help="kinds, with commas; none: no faults")
    parser.add_argument("--services", default=",".join(own.services), help="those that may be hit, with commas")
    parser.add_argument("--storm", type=int, default=own.storm, help="requests of the cancel storm (default 10000)")
    parser.add_argument("--parts", default=",".join(own.parts), help="of main,losses,single,model (default all)")
    parser.add_argument("--no-fencing", action="store_true", help="the negative control: this run must fail")
    parser.add_argument("--no-speed", action="store_true", help="measure goodput and stalls, but do not judge them")
    parser.add_argument("--json", type=Path, help="write the result there; runs of other parts that it holds are kept")
    parser.add_argument("--write", type=Path, help="write the scorecard of all runs in --json there")
    given = parser.parse_args(argv)
    kinds = tuple(kind for kind in given.faults.split(",") if kind and kind != "none")
    services = tuple(given.services.split(","))
    if bad := [*(set(kinds) - set(ALL_KINDS)), *(set(services) - {*SERVICES, NATS_SERVER})]:
        parser.error(f"unknown: {', '.join(bad)}; kinds are {', '.join(ALL_KINDS)}")
    return Options(
        seed=given.seed,
        minutes=given.minutes,
        hours=given.hours,
        every_s=given.every_s or (SOAK_FAULTS_EVERY_S if given.hours else own.every_s),
        baseline_s=given.baseline_s,
        streams=given.streams,
        max_tokens=given.max_tokens,
        engine=given.engine,
        faults=kinds,
        services=services,
        storm=given.storm,
        parts=tuple(given.parts.split(",")),
        fencing=not given.no_fencing,
        judges_speed=not given.no_speed,
        json=given.json,
        write=given.write,
    )
