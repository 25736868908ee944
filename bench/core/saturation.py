"""Where a server saturates, from loads of rising rates."""

from collections.abc import Sequence

import msgspec

from bench.core.summary import Summary

GOOD_SHARE = 0.9


class RateStep(msgspec.Struct, frozen=True, kw_only=True):
    """rate: requests offered per second. The rest from its summary, times in ms."""

    rate: float
    goodput_share: float
    refused_share: float
    refused_after_p99: float | None
    itl_p99: float | None


class PastKnee(RateStep, frozen=True, kw_only=True):
    """A rate above the knee. itl_p99_ratio: of the streams that ran, to that at the knee."""

    itl_p99_ratio: float | None


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """knee: the highest rate whose goodput was at least 90 % of what was offered; None if not even the first was."""

    knee: RateStep | None
    past: list[PastKnee]


def rate_step(rate: float, summary: Summary) -> RateStep:
    """Of a load at this rate that was summarized with an objective."""
    return RateStep(
        rate=rate,
        goodput_share=summary.goodput_share or 0.0,
        refused_share=round(summary.refused / max(1, summary.num_prompts), 4),
        refused_after_p99=summary.refusal.p99,
        itl_p99=summary.itl.p99,
    )


def is_good(step: RateStep) -> bool:
    """Whether its goodput was at least 90 % of what was offered."""
    return step.goodput_share >= GOOD_SHARE


def find_saturation(steps: Sequence[RateStep]) -> Saturation:
    """From steps in any order. A rate that failed below the knee is neither the knee nor past it."""
    good = [step for step in steps if is_good(step)]
    knee = max(good, key=lambda step: step.rate, default=None)
    past = [step for step in steps if knee is not None and step.rate > knee.rate]
    return Saturation(knee=knee, past=[_past(step, knee) for step in sorted(past, key=lambda step: step.rate)])


def _past(step: RateStep, knee: RateStep | None) -> PastKnee:
    ratio = None
    if knee is not None and knee.itl_p99 and step.itl_p99 is not None:
        ratio = round(step.itl_p99 / knee.itl_p99, 3)
    return PastKnee(**msgspec.structs.asdict(step), itl_p99_ratio=ratio)
