"""Telling people of the build of the C++ kernels: half a minute at the first start, in which nothing else happens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from structlog.typing import FilteringBoundLogger


@contextmanager
def told_build(log: FilteringBoundLogger, health: dict[str, object], library: Path) -> Iterator[None]:
    """Around the build of this library: a line in the log before and after it, and health's state meanwhile.

    A build that fails has no second line: why torch computes instead stands in the worker's "ready".
    """
    state, begun_s = health["state"], time.monotonic()
    health["state"] = "building the C++ kernels"
    log.info("building the C++ kernels", library=str(library))
    try:
        yield
    finally:
        health["state"] = state
    log.info("built the C++ kernels", library=str(library), took_s=round(time.monotonic() - begun_s, 1))
