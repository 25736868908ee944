"""Comparing latencies with and without a burden, in turns of one run, so that what else the machine does hits both."""

import statistics
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from bench.core.percentiles import percentile

P99 = 99
Condition = Callable[[], AbstractAsyncContextManager[None]]


async def p99_in_turns(
    measure: Callable[[], Awaitable[list[float]]], control: Condition, burden: Condition, num_rounds: int
) -> tuple[float, float, str]:
    """Medians over the rounds of the p99 of what measure gives, under control and under the burden; and all p99s, to
    print.

    Every other round begins with the burden, so that a drift of the machine favours neither. A first measurement warms
    up and does not count.
    """
    async with control():
        await measure()
    p99s: tuple[list[float], list[float]] = [], []
    for number in range(num_rounds):
        for which in (number % 2, 1 - number % 2):
            async with (control, burden)[which]():
                p99s[which].append(percentile(sorted(await measure()), P99))
    shown = ", ".join(f"{a * 1e3:.1f}/{b * 1e3:.1f}" for a, b in zip(*p99s, strict=True))
    return statistics.median(p99s[0]), statistics.median(p99s[1]), f"p99 in ms, control/burden: {shown}"
