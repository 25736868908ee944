"""CPU per frame and per token over all processes of a node, fake engine.

python -m bench.frame_cost [--streams 1 16 64] [--step-ms 5] [--secure] [--json FILE]
"""

import argparse
import asyncio
import json
import platform
import re
import urllib.request
from pathlib import Path

from bench.node import Node
from bench.processes import ProcessMeter
from bench.sse_load import Load, percentile, run

MAX_TOKENS = 256


def frames_sent(node: Node) -> float:
    """Frames appended so far by the node's worker, from its metrics."""
    log = (node.data_dir / "logs" / "worker-0.log").read_text()
    found = re.search(r"http://127\.0\.0\.1:\d+", log)
    if found is None:
        raise RuntimeError("the worker's log names no health listener")
    with urllib.request.urlopen(found[0] + "/metrics", timeout=5) as answer:
        text = answer.read().decode()
    sample = re.search(r"^tokenbus_worker_frames_total ([0-9.e+]+)$", text, re.MULTILINE)
    if sample is None:
        raise RuntimeError("the worker counts no frames")
    return float(sample[1])


def measure(node: Node, streams: int) -> dict[str, object]:
    """One row: streams at a time, three requests each."""
    load = Load(url=node.url, model=node.model, num_requests=3 * streams, concurrency=streams, max_tokens=MAX_TOKENS)
    meter, before = ProcessMeter.of_node(node.data_dir), frames_sent(node)
    outcomes, seconds = asyncio.run(run(load))
    used, frames = meter.cpu_s(), frames_sent(node) - before
    tokens = sum(outcome.num_events for outcome in outcomes)
    gaps = [gap for outcome in outcomes for gap in outcome.gaps_s]
    total = sum(used.values())
    return {
        "streams": streams,
        "failed": sum(not outcome.ok for outcome in outcomes),
        "tokens_per_s": round(tokens / seconds, 1),
        "frames": int(frames),
        "rows_per_frame": round(tokens / frames, 2),
        "cpu_ms_per_frame": round(1e3 * total / frames, 3),
        "cpu_us_per_token": round(1e6 * total / tokens, 1),
        "cpu_ms_per_frame_by_service": {name: round(1e3 * value / frames, 3) for name, value in sorted(used.items())},
        "ttft_ms_p50": round(1e3 * percentile([o.ttft_s for o in outcomes if o.ttft_s], 0.5), 1),
        "itl_ms_p50": round(1e3 * percentile(gaps, 0.5), 2),
        "itl_ms_p99": round(1e3 * percentile(gaps, 0.99), 2),
        "resident_mb": {name: round(value / 1e6) for name, value in sorted(meter.resident().items())},
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--secure", action="store_true", help="with TLS and permissions on the bus")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    extra = ["--secure"] if options.secure else []
    with Node("--engine", "fake", "--fake-step-ms", str(options.step_ms), "--max-num-seqs", "256", *extra) as node:
        measure(node, 4)  # connections and caches warm up
        rows = [measure(node, streams) for streams in options.streams]
    for row in rows:
        print(json.dumps(row))
    if options.json:
        header = {
            "bench": "frame_cost",
            "secure": options.secure,
            "step_ms": options.step_ms,
            "machine": platform.processor() or "x86_64",
        }
        options.json.write_text(json.dumps(header | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
