"""`tokenbus bench serve`: requests that come as they would to a server."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from bench import workloads
from bench.commands.frame import objective_of, run, start_results
from bench.core.arrivals import arrival_times
from bench.core.plan import Plan, PlannedRequest
from bench.datasets.errors import DatasetError
from bench.datasets.sharegpt import sharegpt_requests
from bench.datasets.synthetic import prefix_requests, random_requests
from bench.datasets.timed_trace import read_trace, trace_requests
from bench.errors import BenchError
from bench.options import ArrivalOptions, DatasetOptions, NumRounds
from bench.prompts import PromptMaker
from bench.report.publish import publish
from bench.session import open_session

DESCRIPTION = "Measure a server under requests that arrive in time; without --base-url a node is started for it."


class ServeOptions(ArrivalOptions, kw_only=True, frozen=True):
    """Of serve."""

    workload: Annotated[
        tuple[Literal["W1", "W2", "W3"], ...],
        Meta(description="of W1, W2, W3: fixed workloads instead of a dataset; docs/BENCHMARKS.md"),
    ] = ()
    num_rounds: NumRounds = 1


def main(argv: list[str]) -> int:
    """Exit status 0 if every request was answered in full."""
    return run("serve", ServeOptions, DESCRIPTION, argv, _serve)


def _serve(options: ServeOptions, node_options: Sequence[str]) -> int:
    objective = objective_of(options.goodput)
    results = start_results("serve", options)
    with open_session(options, node_options) as session:
        session.warm_up()
        for number in range(options.num_rounds):
            plans = [workloads.make(name, session.prompts, number) for name in options.workload]
            for plan in plans or [dataset_plan(options, session.prompts, options.seed + number)]:
                results.rows.append(session.measure(plan, objective))
    return publish(results, options)


def dataset_plan(options: ServeOptions, prompts: PromptMaker, seed: int) -> Plan:
    """Raises BenchError."""
    requests = dataset_requests(options, prompts, seed)
    is_timed = options.dataset_name == "timed_trace"
    if is_timed and options.request_rate != float("inf"):
        raise BenchError("--request-rate does not go with timed_trace, whose requests have their own times")
    if not is_timed:
        draw = random.Random(f"arrivals {seed}")
        times = arrival_times(len(requests), options.request_rate, options.burstiness, draw)
        pairs = zip(requests, times, strict=True)
        requests = [PlannedRequest(request.prompt, request.max_tokens, due_s) for request, due_s in pairs]
    return Plan(options.dataset_name, requests, options.max_concurrency)


def dataset_requests(options: DatasetOptions, prompts: PromptMaker, seed: int) -> list[PlannedRequest]:
    """The requests of --dataset-name. Raises DatasetError, PromptError."""
    if options.dataset_name == "random":
        return random_requests(
            options.num_prompts,
            options.random_input_len,
            options.random_output_len,
            options.random_range_ratio,
            options.random_prefix_len,
            prompts,
            seed,
        )
    if options.dataset_name == "prefix_repetition":
        return prefix_requests(
            options.num_prompts,
            options.prefix_repetition_prefix_len,
            options.prefix_repetition_suffix_len,
            options.prefix_repetition_num_prefixes,
            options.prefix_repetition_output_len,
            prompts,
            seed,
        )
    if not options.dataset_path:
        raise DatasetError(f"--dataset-name {options.dataset_name} needs --dataset-path")
    path = Path(options.dataset_path)
    if options.dataset_name == "timed_trace":
        return trace_requests(read_trace(path), options.num_prompts, options.timed_trace_speed, prompts, seed)
    return sharegpt_requests(
        path, options.num_prompts, options.sharegpt_output_len, not options.disable_shuffle, prompts, seed
    )
