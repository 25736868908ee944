"""A short run with a fixed seed holds; the same faults without fences do not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(folder: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, output and result of `python -m tests.chaos`."""
    path = folder / "result.json"
    command = [sys.executable, "-m", "tests.chaos", "--parts", "main", "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text())


def test_a_short_run_with_a_fixed_seed_holds(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    short = ["--minutes", "0.25", "--every-s", "2.5", "--baseline-s", "3", "--streams", "8", "--max-tokens", "100"]
    status, output, result = run(tmp_path, "--seed", "11", "--storm", "200", "--write", str(card), *short, "--no-speed")
    assert status == 0, output
    assert result["parts"]["main"]["ledger"]["compared"] > 20
    assert result["parts"]["main"]["storm"]["counts"]["sent"] == 200
    assert "| requests lost |" in card.read_text().replace("main | ", "")


@pytest.mark.full
def test_without_fences_the_same_faults_break_streams(tmp_path: Path) -> None:
    blinks = ["--faults", "blink", "--services", "worker,scheduler", "--every-s", "2.5", "--minutes", "0.8"]
    common = ["--seed", "5", "--storm", "0", "--baseline-s", "3", "--no-speed", *blinks]
    status, output, _ = run(tmp_path, *common, "--no-fencing")
    assert status == 1, output
    assert "FAIL main    tokens" in output or "FAIL main    requests lost" in output, output
