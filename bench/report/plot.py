"""A PNG with four panels: throughput, TTFT, ITL and CPU by process, one group for each row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.core.percentiles import Distribution
from bench.core.summary import Summary
from bench.errors import BenchError

PERCENTILES = ("p50", "p90", "p99")


def check_plotting() -> None:
    """Before a long run, not after it. Raises BenchError without matplotlib."""
    try:
        import matplotlib  # noqa: F401  (an optional dependency: only whether it is there)
    except ImportError:
        raise BenchError("--plot needs matplotlib: pip install 'tokenbus[bench]'") from None


def save_plot(title: str, rows: Sequence[Summary], path: Path) -> None:
    """Raises BenchError without matplotlib, OSError."""
    check_plotting()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    names = [row.name for row in rows]
    _bars(axes[0][0], "output tokens/s", names, {"": [row.output_throughput for row in rows]})
    _bars(axes[0][1], "TTFT, ms", names, _percentiles([row.ttft for row in rows]))
    _bars(axes[1][0], "ITL, ms", names, _percentiles([row.itl for row in rows]))
    _stacks(axes[1][1], "CPU, us per output token", names, [row.cpu_us_per_output_token for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=110)


def _percentiles(times: Sequence[Distribution]) -> dict[str, list[float]]:
    return {name: [getattr(each, name) or 0.0 for each in times] for name in PERCENTILES}


def _bars(axes: Any, title: str, names: Sequence[str], series: dict[str, list[float]]) -> None:
    """Bars side by side, one colour for each series."""
    width = 0.8 / len(series)
    for index, (label, values) in enumerate(series.items()):
        places = [place + index * width for place in range(len(names))]
        axes.bar(places, values, width, label=label)
    _name(axes, title, names, 0.4 - width / 2)
    if len(series) > 1:
        axes.legend()


def _stacks(axes: Any, title: str, names: Sequence[str], parts: Sequence[dict[str, float]]) -> None:
    """One bar for each name, its parts on top of each other."""
    bottom = [0.0] * len(names)
    for process in dict.fromkeys(each for part in parts for each in part if each != "total"):
        values = [part.get(process, 0.0) for part in parts]
        axes.bar(range(len(names)), values, 0.8, bottom=bottom, label=process)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    _name(axes, title, names, 0.0)
    if any(bottom):
        axes.legend(fontsize="small")


def _name(axes: Any, title: str, names: Sequence[str], offset: float) -> None:
    axes.set_title(title)
    axes.set_xticks([place + offset for place in range(len(names))], names, rotation=20)
    axes.grid(axis="y", alpha=0.3)
