"""The whole node around a real GPU step: how long the engine waits for its next plan (see bench/plan_wait.py).

SmolLM2's shape with random weights, stored in a repository of this part alone.
"""

import os
import tempfile
from pathlib import Path

from bench.gpu_check.findings import Findings
from bench.gpu_check.models import SMOLLM2, small, store_random_model
from bench.gpu_check.where import Where
from bench.node import Node
from bench.plan_wait import GOAL_P50_PERCENT, GOAL_P99_PERCENT, measure, reaches_goals

MODEL = "random-smollm2"
STREAMS = (16, 64)
GOAL_IDLE_PERCENT = 1.0
_SHOWN = ("streams", "steps", "step_mean_ms", "wait_p50_percent", "wait_p99_percent", "idle_share_percent")


def run(findings: Findings, where: Where) -> None:
    """In a dry run with the CPU engine and a small model, for which no goal holds."""
    with tempfile.TemporaryDirectory(prefix="tokenbus-gpu-") as folder:
        os.environ["XDG_DATA_HOME"] = folder  # of this process and of the node that it starts
        store_random_model(small(SMOLLM2) if where.is_dry else SMOLLM2, MODEL, Path(folder, "source"))
        engine = ("--engine", "cpu", "--dtype", "float32") if where.is_dry else ("--engine", "cuda")
        limits = ("--max-num-seqs", "64", "--max-model-len", "512")
        with Node("--model", MODEL, *engine, *limits) as node:
            _measure(findings, node, where)


def _measure(findings: Findings, node: Node, where: Where) -> None:
    streams, max_tokens = ((2,), 8) if where.is_dry else (STREAMS, 400)
    for count in streams:
        warm = measure(node, count, 1.0, max_tokens=8)
        row = measure(node, count, warm["step_mean_ms"], max_tokens=max_tokens)
        findings.check(f"{count} streams answered", row["failed"] == 0, f"{row['failed']:.0f} failed")
        if where.is_dry:
            continue
        goals = f"p50 < {GOAL_P50_PERCENT:g} %, p99 < {GOAL_P99_PERCENT:g} % of a step, idle < {GOAL_IDLE_PERCENT:g} %"
        findings.row(
            "The engine's wait for its next plan, in percent of a step",
            **{name: row[name] for name in (*_SHOWN, "tokens_per_s")},
            goal=goals,
            reached="met" if reaches_goals(row) and row["idle_share_percent"] < GOAL_IDLE_PERCENT else "missed",
        )
    findings.note(
        "The goals are those of a step of 5 ms; the share of a shorter step is larger for the same wait. Idle is the "
        "share of its time that the engine waits for plans, or for the host between two steps."
    )
