"""A short run with a fixed seed holds; the same faults without fences do not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT_S

RUN_LIMIT_S = 3 * LIMIT_S  # a run has waits of its own


def run(folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, output and result of `python -m tests.chaos`."""
    path = folder / "result.json"
    command = [sys.executable, "-m", "tests.chaos", "--parts", "main", "--json", str(path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate(timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it stops what it has started
            output, _ = process.communicate()
            raise AssertionError(f"not over after {RUN_LIMIT_S:g} s: {output}") from None
    return process.returncode, output, json.loads(path.read_text())["runs"][0]


def test_a_short_run_with_a_fixed_seed_holds(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    short = ["--minutes", "0.25", "--every-s", "2.5", "--baseline-s", "1", "--streams", "8", "--max-tokens", "60"]
    seed = "4731"  # kills of detokenizer, worker, scheduler, gateway and nats-server, then a blink of a worker
    status, output, result = run(tmp_path, "--seed", seed, "--storm", "100", "--write", str(card), *short, "--no-speed")
    assert status == 0, output
    found = result["parts"]["main"]
    assert found["ledger"]["compared"] > 20
    assert found["storm"]["counts"]["sent"] == 100
    assert "kill" in {kind for kinds in found["faults"].values() for kind in kinds}
    assert "| main | requests lost | 0 | 0 of" in card.read_text()


@pytest.mark.full
def test_without_fences_the_same_faults_break_streams(tmp_path: Path) -> None:
    blinks = ["--faults", "blink", "--services", "worker,scheduler", "--every-s", "2.5", "--minutes", "0.8"]
    common = ["--seed", "5", "--storm", "0", "--baseline-s", "3", "--no-speed", *blinks]
    status, output, _ = run(tmp_path, *common, "--no-fencing")
    assert status == 1, output
    assert "FAIL main    tokens" in output or "FAIL main    requests lost" in output, output
