"""`python -m tests.shard --seed 17 --trace`: one seed again, line by line; `--seeds 0:1000`: many, on all cores."""

import argparse
import sys
import time

from tests.shard.invariants import problems
from tests.shard.many import report, run_many
from tests.shard.mutants import MUTANTS, planted
from tests.shard.shard import Shard


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.shard", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--seeds", help="run these, FIRST:BEFORE", default="0:100")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--mutant", choices=MUTANTS, help="with this bug planted, under its scenario")
    options = parser.parse_args()
    if options.seed is None:
        return _many(*map(int, options.seeds.split(":")))
    if options.mutant is None:
        return _one(Shard(options.seed, trace=_print if options.trace else None))
    with planted(options.mutant):
        scenario = MUTANTS[options.mutant].scenario
        return _one(Shard(options.seed, scenario, trace=_print if options.trace else None))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _one(shard: Shard) -> int:
    _print(f"seed {shard.seed}: {shard.scenario}")
    found = problems(shard.run())
    _print("\n".join(found) or f"all held, {len(shard.log.archive)} records in {shard.world.now:.1f} s")
    return bool(found)


def _many(first: int, before: int) -> int:
    began = time.monotonic()
    results = list(run_many(range(first, before)))
    took_s = time.monotonic() - began
    failed = report(results)
    _print(failed or "all held")
    _print(f"{len(results)} seeds in {took_s:.1f} s, {60 * len(results) / took_s:.0f} a minute")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
