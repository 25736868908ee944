"""Running a plan against a server."""

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from bench.client.connection import ask
from bench.client.request_bytes import request_bytes
from bench.client.target import Target
from bench.core.outcome import Outcome
from bench.core.plan import Plan, PlannedRequest

REQUEST_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """outcomes: in the order of the plan. seconds: from the start to the end of the last request. client_cpu_s: what
    this process used in between."""

    outcomes: Sequence[Outcome]
    seconds: float
    client_cpu_s: float


def run_load(target: Target, plan: Plan, limit_s: float = REQUEST_LIMIT_S) -> LoadResult:
    """Ask everything that the plan holds and wait for all of it. limit_s: for each request. Raises TargetError."""
    requests = [request_bytes(target, request) for request in plan.requests]
    is_collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # a collection would show up as a pause of the server's
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(target, plan, requests, limit_s))
    finally:
        if is_collecting:
            gc.enable()


async def _run(target: Target, plan: Plan, requests: Sequence[bytes], limit_s: float) -> LoadResult:
    outcomes = [_outcome(request) for request in plan.requests]
    turns = asyncio.Semaphore(plan.max_concurrency) if plan.max_concurrency else None
    cpu_before = time.process_time()
    zero_s = time.perf_counter()

    async def one(index: int) -> None:
        outcome, due_s = outcomes[index], plan.requests[index].due_s
        delay_s = due_s - (time.perf_counter() - zero_s)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        if turns is None:
            now_s = time.perf_counter() - zero_s
            outcome.begun_s = min(due_s, now_s)  # the loop's timers may be early by a millisecond
            outcome.late_s = max(0.0, now_s - due_s)
            await ask(target.address, requests[index], outcome, zero_s, limit_s)
            return
        async with turns:
            outcome.begun_s = time.perf_counter() - zero_s
            await ask(target.address, requests[index], outcome, zero_s, limit_s)

    await asyncio.gather(*(one(index) for index in range(len(requests))))
    seconds = time.perf_counter() - zero_s
    for outcome in outcomes:
        _check_length(outcome, target.exact)
    return LoadResult(outcomes, seconds, time.process_time() - cpu_before)


def _outcome(request: PlannedRequest) -> Outcome:
    return Outcome(num_wanted=request.max_tokens, num_prompt_tokens=request.prompt.num_tokens)


def _check_length(outcome: Outcome, exact: bool) -> None:
    """An answer of another length than asked is no measurement of the one that was asked."""
    billed = outcome.num_usage_tokens
    if exact and outcome.is_ok and billed is not None and billed != outcome.num_wanted:
        outcome.error = f"{billed} output tokens instead of {outcome.num_wanted}"
        outcome.code = f"wrong length, finish_reason {outcome.finish_reason or 'none'}"
