"""Figures, comparisons, saturation, files and plots."""

from pathlib import Path

import msgspec
import pytest

from bench.core.comparison import comparison
from bench.core.figures import columns, number
from bench.core.percentiles import Distribution
from bench.core.saturation import find_saturation, rate_step
from bench.core.summary import Summary, summarize
from bench.report.plot import save_plot
from bench.report.results import ResultsError, load_results, new_results, save_results
from bench.report.rows import save_rows


def row(name: str = "W2", **fields: object) -> Summary:
    summary = summarize(name, [], 1.0, max_concurrency=16)
    return msgspec.structs.replace(summary, **fields)


def times(p50: float, p99: float) -> Distribution:
    return Distribution(9, p50, p50, p99, p99, p99)


@pytest.mark.parametrize(("value", "text"), [(None, ""), (0.1234, "0.12"), (12.34, "12.3"), (1234.5, "1,234")])
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_figures_that_nobody_has_are_left_out() -> None:
    table = columns([row(), row(goodput_share=0.5, cpu_us_per_output_token={"a": 3.0, "total": 3.0})])
    assert table["goodput share"] == ["", "50.0%"]
    assert table["a, CPU us/token"] == ["", "3.00"]
    assert "TTFT ms" not in table


def test_a_comparison_shows_median_rounds_and_ratios_of_medians() -> None:
    ours = [row(output_throughput=each, ttft=times(10, 20)) for each in (300.0, 100.0, 200.0)]
    peer = [row(output_throughput=100.0, ttft=times(30, 40)), row("W1", output_throughput=5.0)]
    text = comparison([("peer", peer), ("ours", ours)])
    lines = text.splitlines()
    assert lines[:4] == ["## W2", "", "| | peer | ours (3 rounds) |", "|---|---:|---:|"]
    assert "| output tokens/s | 100 | 200 |" in lines
    assert "| output tokens/s / peer | 1.00x | 2.00x |" in lines
    assert "| TTFT p50 / peer | 1.00x | 0.33x |" in lines
    assert "| TTFT ms | 30.0 / 40.0 / 40.0 | 10.0 / 20.0 / 20.0 |" in lines
    assert "## W1" in lines


def step(rate: float, share: float, refused: int = 0, itl_p99: float = 10.0) -> Summary:
    return row(goodput_share=share, refused=refused, num_prompts=100, itl=times(5, itl_p99), refusal=times(1, 3))


def test_the_knee_is_the_highest_rate_with_ninety_percent_of_goodput() -> None:
    shares = {1.0: 1.0, 2.0: 0.8, 4.0: 0.9, 8.0: 0.5, 16.0: 0.2}
    steps = [rate_step(rate, step(rate, share, int(100 - 100 * share), 10 + rate)) for rate, share in shares.items()]
    found = find_saturation(steps)
    assert found.knee is not None
    assert found.knee.rate == 4
    assert [each.rate for each in found.past] == [8, 16]
    assert found.past[0].refused_share == 0.5
    assert found.past[0].refused_after_p99 == 3
    assert found.past[0].itl_p99_ratio == pytest.approx(18 / 14, abs=1e-3)
    assert find_saturation(steps[1:2]).knee is None


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = new_results("serve", "ours", {"note": "x"})
    results.rows.append(row(ttft=times(1, 2), cpu_us_per_output_token={"a": 1.0}))
    path = tmp_path / "deep" / "one.json"
    save_results(results, path)
    assert load_results(path) == results
    assert results.machine.cores >= 1
    assert results.machine.versions["tokenbus"]


@pytest.mark.parametrize("text", [None, "{}", "nonsense"])
def test_files_without_results(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ResultsError, match=r"one\.json"):
        load_results(path)


def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row(cpu_us_per_output_token={"a": 1.0, "b": 2.0, "total": 3.0}, ttft=times(1, 2)), row("W3")]
    save_plot("a title", rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_a_module_come_with_its_command_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["worker_step.py", "--steps", "9"])
    save_rows(tmp_path / "rows.json", "worker_step", [{"us": 1.5}], {"scale": 2})
    written = msgspec.json.decode((tmp_path / "rows.json").read_bytes())
    assert written.pop("machine")["cores"] >= 1
    command = "python -m bench.worker_step --steps 9"
    assert written == {"bench": "worker_step", "command": command, "scale": 2, "rows": [{"us": 1.5}]}
