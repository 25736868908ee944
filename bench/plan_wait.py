"""How long an engine with sequences waits for its next plan, in percent of a step (fake engine, whole node).

python -m bench.plan_wait [--streams 16] [--step-ms 5] [--rounds 3] [--json FILE]

The client that makes the load runs on the same cores. Percentiles are upper bounds of histogram buckets, so never below
the true ones; the goals are the project's own: p50 under 1 % and p99 under 20 % of a step of 5 ms at 16 streams.
"""

import argparse
import json
from pathlib import Path

from bench.client.target import Target
from bench.core.plan import Plan
from bench.datasets.synthetic import random_requests
from bench.measure import measure as measure_plan
from bench.node import Node
from bench.prompts import PromptMaker
from bench.report.rows import save_rows
from bench.worker_metrics import read_histogram, worker_metrics

MAX_TOKENS = 1500
NUM_PROMPT_TOKENS = 48
GOAL_P50_PERCENT = 1.0
GOAL_P99_PERCENT = 20.0

_WAIT = "tokenbus_worker_engine_wait_seconds"
_OVERHEAD = "tokenbus_worker_step_overhead_seconds"
_STEP = "tokenbus_worker_step_seconds"
_FRAME = "tokenbus_worker_frame_stored_seconds"


def measure(node: Node, streams: int, step_ms: float, max_tokens: int = MAX_TOKENS) -> dict[str, float]:
    """One round: this many streams from the first token to the last."""
    before = worker_metrics(node)
    requests = random_requests(streams, NUM_PROMPT_TOKENS, max_tokens, 0.0, 0, PromptMaker.find(node.model), seed=7)
    load = measure_plan(Target(base_url=node.url, model=node.model), Plan("plan wait", requests, streams))
    after = worker_metrics(node)
    wait, overhead, step, frame = (
        read_histogram(after, name).since(read_histogram(before, name)) for name in (_WAIT, _OVERHEAD, _STEP, _FRAME)
    )
    busy_s = wait.total + overhead.total + step.total
    step_s = step_ms / 1000
    return {
        "streams": streams,
        "failed": load.failed,
        "steps": step.num_values,
        "waits": wait.num_values,
        "wait_p50_percent": round(100 * wait.quantile(0.5) / step_s, 3),
        "wait_p99_percent": round(100 * wait.quantile(0.99) / step_s, 3),
        "wait_share_percent": round(100 * wait.total / busy_s, 3),
        "idle_share_percent": round(100 * (wait.total + overhead.total) / busy_s, 3),  # for plans and for the host
        "overhead_mean_us": round(1e6 * overhead.total / step.num_values, 1),
        "step_mean_ms": round(1e3 * step.total / step.num_values, 3),
        "frame_stored_ms_p50": round(1e3 * frame.quantile(0.5), 2),
        "frame_stored_ms_p99": round(1e3 * frame.quantile(0.99), 2),
        "tokens_per_s": load.output_throughput,
        "itl_ms_p99": round(load.itl.p99 or 0.0, 2),
    }


def reaches_goals(row: dict[str, float]) -> bool:
    """Whether a round is whole and the engine hardly waits in it."""
    is_quick = row["wait_p50_percent"] < GOAL_P50_PERCENT and row["wait_p99_percent"] < GOAL_P99_PERCENT
    return is_quick and row["failed"] == 0


def main() -> int:
    """Measure, print, write where asked; 1 if a round misses the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[16])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with Node("--engine", "fake", "--fake-step-ms", str(options.step_ms), "--max-num-seqs", "256") as node:
        measure(node, 4, options.step_ms, max_tokens=64)  # connections and caches warm up
        rows = [
            measure(node, streams, options.step_ms, options.max_tokens)
            for _ in range(options.rounds)
            for streams in options.streams
        ]
    for row in rows:
        print(json.dumps(row))
    if options.json:
        save_rows(options.json, "plan_wait", rows, {"step_ms": options.step_ms})
    return 0 if all(map(reaches_goals, rows)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
