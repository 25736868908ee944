"""How long one thing takes that is done again and again."""

import time
from collections.abc import Callable


def repeated_ms(step: Callable[[], object], at_least: int, seconds: float) -> list[float]:
    """Milliseconds of each call after the first: at_least so many, and as many as it takes to fill these seconds."""
    step()
    times: list[float] = []
    while len(times) < at_least or sum(times) < 1e3 * seconds:
        begun_s = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begun_s))
    return times
