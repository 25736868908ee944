"""When requests arrive in an open loop."""

import random


def arrival_times(num: int, rate: float, burstiness: float, draw: random.Random) -> list[float]:
    """num times in seconds, ascending; the first is 0.

    rate: mean requests per second, inf for all at once. burstiness: shape of the gamma distribution of the gaps, with
    vLLM's meaning: 1 is a Poisson process, below 1 requests come in bursts, above 1 they come evenly. The gaps are
    stretched so that the last request comes exactly when the rate says, so that runs of one rate offer the same load.
    """
    if rate == float("inf"):
        return [0.0] * num
    if not (rate > 0 and burstiness > 0):
        raise ValueError("rate and burstiness must be above 0")
    gaps = [draw.gammavariate(burstiness, 1.0) for _ in range(num - 1)]
    total = sum(gaps)
    scale = (num - 1) / rate / total if total else 0.0
    times = [0.0]
    for gap in gaps:
        times.append(times[-1] + gap * scale)
    return times[:num]
