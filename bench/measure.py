"""One measurement: a plan against a server, while its processes are watched."""

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
    if meter is not None:
        meter.restart()
    result = run_load(target, plan, limit_s)
    used = meter.cpu_s() if meter is not None else {}
    summary = summarize(
        plan.name,
        result.outcomes,
        result.seconds,
        max_concurrency=plan.max_concurrency,
        objective=objective,
        client_cpu_s=result.client_cpu_s,
    )
    if meter is not None:
        add_processes(summary, used, meter.resident(), meter.peak_resident())
    return summary
