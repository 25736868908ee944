"""What parts do on a device, with the emulator and a clock of the test's own in its place: at least it runs through."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.gpu_check import (
    attention,
    attention_flex,
    attention_table,
    graphs,
    peer,
    references,
    sanitizer,
    throughput,
)
from bench.gpu_check.attention_inputs import TINY_DECODE, TINY_FP8, TINY_PREFILL, Inputs
from bench.gpu_check.engines import EmulatedEngine, Options
from bench.gpu_check.findings import Findings, Table
from bench.gpu_check.models import SMOLLM2, small
from bench.gpu_check.where import Where
from kernels.check.case import Size
from kernels.check.outcome import Comparison, Compilation
from kernels.check.outcome import Findings as KernelFindings

US = 1e-6


class Clock:
    """Every launch takes a microsecond."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def __call__(self, launch: Callable[[], None]) -> float:
        launch()
        return US

    def copy_gb_per_s(self) -> float:
        return 100.0


class SeeminglyADevice(Where):
    """Says that it is no dry run."""

    @property
    def num_parallel(self) -> int:
        return 8

    def wait(self) -> None:
        pass


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    return Findings(tmp_path / "part.json")


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Where:
    for module in (attention_table, throughput):
        monkeypatch.setattr(module, "DeviceClock", Clock)
    monkeypatch.setattr(attention_table, "capture_if_possible", lambda launch: launch)
    monkeypatch.setattr(graphs, "capture", lambda launch: launch)

    def emulated(config: object, weights: object, options: Options, where: Where) -> EmulatedEngine:
        return EmulatedEngine(config, weights, options, where)  # type: ignore[arg-type]

    for module in (graphs, throughput):
        monkeypatch.setattr(module, "make_engine", emulated)
    return SeeminglyADevice(Where.find(is_dry=True).place, is_dry=False)


def rows(table: Table) -> list[dict[str, object]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def all_good(findings: Findings) -> bool:
    return bool(findings.found.checks) and all(check.is_good for check in findings.found.checks)


def test_attention_is_measured_against_copies_goals_and_peers(
    findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, given in (("DECODE", TINY_DECODE), ("DECODE_FP8", TINY_FP8), ("PREFILL", TINY_PREFILL)):
        monkeypatch.setattr(attention, name, given)
    attention.run(findings, where)
    assert all_good(findings)
    tables = {table.title: rows(table) for table in findings.found.tables}
    decode = tables[attention_table.DECODE_TABLE][0]
    rate = TINY_DECODE[0].cache_bytes / US / 1e9
    assert decode["us"] == 1.0
    assert decode["GB/s"] == round(rate)
    assert decode["of a copy"] == round(rate / 100, 3)
    assert decode["reached"] == ("missed" if rate < 85 else "met" if rate < 90 else "stretch met")
    [fp8] = tables["Decode with a cache of fp8"]
    assert (fp8["times as fast as bfloat16"], fp8["reached"]) == (1.0, "missed")
    assert tables[attention_table.PREFILL_TABLE][0]["TFLOP/s"] == round(TINY_PREFILL.flops / US / 1e12, 1)
    # torch has no cuDNN here, and says so in a note.
    told = " ".join(findings.found.notes)
    assert "SDPA cuDNN, B2 ctx 48" in told


def test_a_result_that_is_wrong_fails(findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Inputs.launch

    def half(self: Inputs) -> None:
        launch(self)
        self.out.mul_(0.5)

    monkeypatch.setattr(Inputs, "launch", half)
    attention._decode(findings, where, attention_table.Clock(where), TINY_DECODE[0])
    assert [check.is_good for check in findings.found.checks] == [False]


def test_a_peer_that_cannot_be_compiled_is_noted(
    findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> torch.Tensor:
        raise RuntimeError("no compiler\nand more lines")

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: refuse)
    monkeypatch.setattr(attention_flex, "DECODE", (TINY_DECODE[0],) * 3)
    monkeypatch.setattr(attention_flex, "PREFILL", TINY_PREFILL)
    attention_flex.run(findings, where)
    assert findings.found.notes[0] == "flex_attention, B2 ctx 48, 8/1 heads of 128: no compiler"
    assert len(findings.found.notes) == 4
    assert findings.found.tables == []


def test_tokens_are_counted_for_ours_the_limit_and_the_peer(
    findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (throughput, peer):
        monkeypatch.setattr(module, "LOAD", throughput.TINY_LOAD)
    config = small(SMOLLM2)
    throughput.measure(findings, where, config)
    peer.measure(findings, where, config)
    [table] = findings.found.tables
    assert [(row["batch"], row["who"]) for row in rows(table)] == [
        (1, "tokenbus"),
        (1, "limit of the bandwidth"),
        (3, "tokenbus"),
        (3, "limit of the bandwidth"),
        (1, peer.WHO),
        (3, peer.WHO),
    ]
    assert all(row["decode tokens/s"] for row in rows(table))


def test_the_peers_tokens_are_counted_from_when_all_decode() -> None:
    answered = {"requests": [[0.5, [1.0, 2.0, 3.0]], [0.75, [1.5, 2.5, 3.5]]]}
    assert peer.figures(answered) == {"decode tokens/s": 2, "all tokens/s": 2}


def test_replays_are_compared_with_launches(findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_ATTENTION_CONTEXT", 96)
    monkeypatch.setattr(graphs, "SIZES", (1, 3))
    graphs.run(findings, where)
    assert all_good(findings)
    assert len(findings.found.checks) == 5


@pytest.mark.parametrize(("summary", "status", "is_good"), [("0 errors", 0, True), ("2 errors", 9, False)])
def test_each_tool_of_the_sanitizer_is_run(
    summary: str,
    status: int,
    is_good: bool,
    findings: Findings,
    where: Where,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "compute-sanitizer"
    keep = f'echo "$@ caching=$PYTORCH_NO_CUDA_MEMORY_CACHING" >>{tmp_path}/calls'
    program.write_text(f'#!/bin/sh\n{keep}\necho "========= ERROR SUMMARY: {summary}"\nexit {status}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    sanitizer.run(findings, where)
    assert [(check.what, check.is_good) for check in findings.found.checks] == [
        (tool, is_good) for tool in sanitizer.TOOLS
    ]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("--tool memcheck --kernel-name kns=tokenbus")
    assert calls[0].endswith("-m bench.gpu_check.small_shapes caching=1")


def test_without_a_sanitizer_the_part_is_skipped(
    findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: None)
    sanitizer.run(findings, where)
    assert "no compute-sanitizer" in findings.found.skipped


def test_every_operations_result_and_time_is_told(
    findings: Findings, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert where.place.size is Size.SMALL

    def check(place: object, arch: object, operations: list[str]) -> KernelFindings:
        found = KernelFindings("here", "sm_90")
        found.compilations.append(Compilation(operations[0], "kernel", 2, 40, 48))
        problem = "differs from the reference" if operations == ["rope"] else None
        found.comparisons.append(Comparison(operations[0], "case", 0.5, 10.0, 3000.4, 0.71, problem, 12.34))
        return found

    monkeypatch.setattr(references, "check", check)
    references.run(findings, where)
    wrong = [check.what for check in findings.found.checks if not check.is_good]
    assert wrong == ["rope case"]
    assert rows(findings.found.tables[0])[0]["of a copy"] == "71%"
