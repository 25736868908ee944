"""Parts in the emulator: some in each run, all together in the long one."""

import json
import subprocess
from pathlib import Path

import pytest

from bench.gpu_check import attention, equality, ptx
from bench.gpu_check.engines import EmulatedEngine
from bench.gpu_check.findings import Findings
from bench.gpu_check.parts import PARTS
from bench.gpu_check.where import Where
from services.worker.engine.interface import StepInput, StepOutput

ROOT = Path(__file__).parents[3]


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    return Findings(tmp_path / "part.json")


@pytest.fixture
def where() -> Where:
    return Where.find(is_dry=True)


def test_ptx(findings: Findings, where: Where) -> None:
    ptx.run(findings, where)
    assert [check for check in findings.found.checks if not check.is_good] == []
    assert len(findings.found.checks) == 18


def test_attention(findings: Findings, where: Where) -> None:
    attention.run(findings, where)
    assert [check for check in findings.found.checks if not check.is_good] == []
    assert [table.title for table in findings.found.tables] == [
        "Decode: one query a sequence",
        "Decode with a cache of fp8",
        "Prompts",
    ]


def test_equality(findings: Findings, where: Where) -> None:
    equality.run(findings, where)
    assert [check.is_good for check in findings.found.checks] == [True]


def test_an_engine_that_samples_another_token_is_not_equal(
    findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = EmulatedEngine.step

    def wrong(self: EmulatedEngine, batch: StepInput) -> StepOutput:
        output = step(self, batch)
        output.tokens[-1] ^= 1
        return output

    monkeypatch.setattr(EmulatedEngine, "step", wrong)
    equality.run(findings, where)
    assert [check.is_good for check in findings.found.checks] == [False]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_all_parts_end_to_end(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", str(ROOT / "just"), "gpu-check", "--dry-run", "--result-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu-dry-run.json").read_text())
    assert [part["name"] for part in found["parts"]] == [part.name for part in PARTS]
    assert {part["status"] for part in found["parts"] if part["name"] != "attention-flashinfer"} == {"passed"}
    assert "It says nothing of speed" in (tmp_path / "gpu-dry-run.md").read_text()
