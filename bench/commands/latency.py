"""`tokenbus bench latency`: one batch of equal requests, again and again."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from bench.commands.frame import run, start_results
from bench.core.figures import spread
from bench.core.percentiles import distribution_ms
from bench.core.plan import Plan
from bench.datasets.synthetic import random_requests
from bench.options import ResultOptions
from bench.report.publish import publish
from bench.session import Session, open_session

DESCRIPTION = "Measure one batch of equal requests from its start to the end of its last request."


class LatencyOptions(ResultOptions, kw_only=True, frozen=True):
    """Of latency."""

    input_len: Annotated[int, Meta(description="tokens in", ge=1)] = 32
    output_len: Annotated[int, Meta(description="tokens out", ge=1)] = 128
    batch_size: Annotated[int, Meta(description="requests of the batch", ge=1)] = 8
    num_iters_warmup: Annotated[int, Meta(description="batches that are not measured", ge=0)] = 2
    num_iters: Annotated[int, Meta(description="batches that are", ge=1)] = 10


def main(argv: list[str]) -> int:
    """Exit status 0 if every request was answered in full."""
    return run("latency", LatencyOptions, DESCRIPTION, argv, _latency)


def _latency(options: LatencyOptions, node_options: Sequence[str]) -> int:
    results = start_results("latency", options)
    with open_session(options, node_options) as session:
        for number in range(options.num_iters_warmup):
            session.measure(_batch(options, session, -1 - number))
        batches = [_batch(options, session, number) for number in range(options.num_iters)]
        summary, seconds = session.measure_in_turn(batches)
    results.rows.append(summary)
    latency = distribution_ms(seconds)
    results.details["batch_ms"] = latency
    status = publish(results, options)
    print(f"A batch of {options.batch_size} takes {spread(latency)} ms (p50 / p90 / p99 of {options.num_iters})")
    return status


def _batch(options: LatencyOptions, session: Session, number: int) -> Plan:
    requests = random_requests(
        options.batch_size, options.input_len, options.output_len, 0.0, 0, session.prompts, options.seed + number
    )
    return Plan(f"batch of {options.batch_size}", requests)
