"""`tokenbus bench throughput`: everything at once, as a batch job would ask it."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from bench.commands.frame import run, start_results
from bench.commands.serve import dataset_requests
from bench.core.plan import Plan
from bench.errors import BenchError
from bench.options import Count, DatasetOptions, NumRounds
from bench.report.publish import publish
from bench.session import open_session

DESCRIPTION = "Send all requests at once and measure until the last one ends."


class ThroughputOptions(DatasetOptions, kw_only=True, frozen=True):
    """Of throughput."""

    input_len: Annotated[Count | None, Meta(description="short for --random-input-len")] = None
    output_len: Annotated[Count | None, Meta(description="short for --random-output-len")] = None
    num_rounds: NumRounds = 1


def main(argv: list[str]) -> int:
    """Exit status 0 if every request was answered in full."""
    return run("throughput", ThroughputOptions, DESCRIPTION, argv, _throughput)


def _throughput(options: ThroughputOptions, node_options: Sequence[str]) -> int:
    if options.dataset_name == "timed_trace":
        raise BenchError("a trace has its own times: replay it with `tokenbus bench serve`")
    results = start_results("throughput", options)
    dataset = _with_lengths(options)
    with open_session(options, node_options) as session:
        session.warm_up()
        for number in range(options.num_rounds):
            requests = dataset_requests(dataset, session.prompts, options.seed + number)
            results.rows.append(session.measure(Plan(options.dataset_name, requests)))
    return publish(results, options)


def _with_lengths(options: ThroughputOptions) -> ThroughputOptions:
    return replace(
        options,
        random_input_len=options.input_len or options.random_input_len,
        random_output_len=options.output_len or options.random_output_len,
    )
