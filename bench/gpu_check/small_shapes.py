"""Every operation at small shapes, each case once: what runs under compute-sanitizer.

python -m bench.gpu_check.small_shapes [--dry-run]
"""

import argparse

from bench.gpu_check.where import Where
from kernels.check.case import Size
from kernels.check.cases import all_cases


def main() -> int:
    """1 if a result is wrong, which would be no sanitizer's business but must not go unseen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    return 1 if wrong_cases(Where.find(parser.parse_args().dry_run)) else 0


def wrong_cases(where: Where) -> list[str]:
    """Names of those that differ from their reference."""
    wrong = []
    for case in all_cases(Size.SMALL):
        trial = case.prepare(where.load, where.device)
        trial.launch()
        where.wait()
        if not trial.compare() <= 1:
            wrong.append(f"{case.operation} {case.what}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
