"""One measurement: plans against a server, while its processes are watched."""

from collections.abc import Sequence

from bench.client.load import REQUEST_LIMIT_S, run_load
from bench.client.target import Target
from bench.core.goodput import Objective
from bench.core.plan import Plan
from bench.core.summary import Summary, add_processes, summarize
from bench.processes import ProcessMeter


def measure(
    target: Target,
    plan: Plan,
    meter: ProcessMeter | None = None,
    objective: Objective | None = None,
    limit_s: float = REQUEST_LIMIT_S,
) -> Summary:
    """Run the plan once. limit_s: for each request. Raises TargetError."""
    return measure_in_turn(target, [plan], meter, objective, limit_s)[0]


def measure_in_turn(
    target: Target,
    plans: Sequence[Plan],
    meter: ProcessMeter | None = None,
    objective: Objective | None = None,
    limit_s: float = REQUEST_LIMIT_S,
) -> tuple[Summary, list[float]]:
    """Run plans of one kind one after the other: one summary of all, named as the first, and the seconds that each
    took. Raises TargetError."""
    if meter is not None:
        meter.restart()
    results = [run_load(target, plan, limit_s) for plan in plans]
    used = meter.cpu_s() if meter is not None else {}
    seconds = [result.seconds for result in results]
    summary = summarize(
        plans[0].name,
        [outcome for result in results for outcome in result.outcomes],
        sum(seconds),
        max_concurrency=plans[0].max_concurrency,
        objective=objective,
        client_cpu_s=sum(result.client_cpu_s for result in results),
    )
    if meter is not None:
        add_processes(summary, used, meter.resident(), meter.peak_resident())
    return summary, seconds
