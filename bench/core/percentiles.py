"""Percentiles of what was measured."""

from collections.abc import Sequence

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """Of some measured times, in milliseconds. num: how many there were; all others are None without any."""

    num: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest ranks, as numpy does; ordered ascending, not empty."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return min(high, max(low, low + (high - low) * (position - below)))  # rounding must not leave the two


def distribution_ms(values_s: Sequence[float]) -> Distribution:
    """Of times in seconds, in any order."""
    if not values_s:
        return Distribution(0)
    ordered = sorted(values_s)
    p50, p90, p99 = (round(1e3 * percentile(ordered, percent), 3) for percent in (50, 90, 99))
    mean = round(1e3 * sum(ordered) / len(ordered), 3)
    return Distribution(len(ordered), mean, p50, p90, p99, round(1e3 * ordered[-1], 3))
