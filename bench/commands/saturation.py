"""`tokenbus bench saturation`: W4, an open loop at rising rates until the server saturates, and some way beyond."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from bench import workloads
from bench.commands.frame import objective_of, run, start_results
from bench.core.figures import number
from bench.core.saturation import RateStep, Saturation, find_saturation, is_good, rate_step
from bench.errors import BenchError
from bench.options import Burstiness, ResultOptions
from bench.report.publish import publish
from bench.session import open_session

DESCRIPTION = "Raise the rate of requests until goodput falls below 90 % of it, and report the knee and what is beyond."
MAX_STEPS = 20


class SaturationOptions(ResultOptions, kw_only=True, frozen=True):
    """Of saturation."""

    goodput: Annotated[tuple[str, ...], Meta(description="objective in ms that a good request meets")] = (
        "ttft:1000",
        "tpot:100",
    )
    rates: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(description="requests per second to offer; none: from --start-rate on, times --rate-factor"),
    ] = ()
    start_rate: Annotated[float, Meta(description="the first rate", gt=0)] = 1.0
    rate_factor: Annotated[float, Meta(description="from one rate to the next", gt=1)] = 1.5
    num_past_knee: Annotated[int, Meta(description="rates that must fail before it ends", ge=1)] = 2
    step_s: Annotated[float, Meta(description="seconds for which each rate is offered", gt=0)] = 10.0
    burstiness: Burstiness = 1.0


def main(argv: list[str]) -> int:
    """Exit status 0 unless a request failed that was not refused."""
    return run("saturation", SaturationOptions, DESCRIPTION, argv, _saturation)


def _saturation(options: SaturationOptions, node_options: Sequence[str]) -> int:
    objective = objective_of(options.goodput)
    if objective is None:
        raise BenchError("--goodput must name an objective, e.g. ttft:1000 tpot:100")
    results = start_results("saturation", options)
    steps: list[RateStep] = []
    with open_session(options, node_options) as session:
        session.warm_up()
        while (rate := _next_rate(options, steps)) is not None:
            plan = workloads.make_w4(rate, options.step_s, session.prompts, options.burstiness, options.seed)
            summary = session.measure(plan, objective)
            results.rows.append(summary)
            steps.append(rate_step(rate, summary))
            print(_told(steps[-1]), flush=True)
    saturation = find_saturation(steps)
    results.details["saturation"] = saturation
    status = publish(results, options)
    print(_verdict(saturation))
    return status


def _next_rate(options: SaturationOptions, steps: Sequence[RateStep]) -> float | None:
    """None at the end."""
    if options.rates:
        return options.rates[len(steps)] if len(steps) < len(options.rates) else None
    last = steps[-options.num_past_knee :]
    has_failed = len(last) == options.num_past_knee and not any(is_good(step) for step in last)
    if has_failed or len(steps) == MAX_STEPS:
        return None
    return round(options.start_rate * options.rate_factor ** len(steps), 3)


def _told(step: RateStep) -> str:
    return f"{step.rate:g}/s: goodput {step.goodput_share:.1%}, refused {step.refused_share:.1%}"


def _verdict(saturation: Saturation) -> str:
    if saturation.knee is None:
        return "No rate had a goodput of 90 %: begin lower (--start-rate)."
    knee = saturation.knee
    lines = [f"Knee: {knee.rate:g} requests/s, goodput {knee.goodput_share:.1%}, ITL p99 {number(knee.itl_p99)} ms"]
    lines += [
        f"  at {_told(step)} (p99 after {number(step.refused_after_p99) or '-'} ms),"
        f" ITL p99 {number(step.itl_p99_ratio) or '-'}x the knee's"
        for step in saturation.past
    ]
    return "\n".join(lines)
