"""The figures of a summary as short texts, in the order in which people read them."""

from collections.abc import Sequence

from bench.core.percentiles import Distribution
from bench.core.summary import Summary

TIMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}


def figures(summary: Summary, times: Sequence[str] = tuple(TIMES)) -> dict[str, str]:
    """Name of a figure -> its text, "" for what was not measured. times: of TIMES, each as p50 / p90 / p99 in ms."""
    rows = {
        "streams": "open loop" if summary.max_concurrency is None else str(summary.max_concurrency),
        "requests": str(summary.num_prompts),
        "failed": str(summary.failed),
        "refused (429, 503)": str(summary.refused),
        "seconds": f"{summary.duration:.1f}",
        "output tokens/s": number(summary.output_throughput),
        "total tokens/s": number(summary.total_token_throughput),
        "goodput, requests/s": number(summary.request_goodput),
        "goodput share": "" if summary.goodput_share is None else f"{summary.goodput_share:.1%}",
    }
    rows |= {f"{TIMES[name]} ms": spread(getattr(summary, name)) for name in times}
    rows |= {
        "refused after ms": spread(summary.refusal),
        "tokens an arrival": number(summary.tokens_per_arrival),
        "client, CPU us/token": number(summary.client_cpu_us_per_output_token),
    }
    rows |= {f"{name}, CPU us/token": number(each) for name, each in summary.cpu_us_per_output_token.items()}
    rows |= {f"{name}, resident MB": number(each) for name, each in summary.resident_mb.items()}
    return rows


def spread(times: Distribution) -> str:
    """`p50 / p90 / p99`; "" without any."""
    if times.p50 is None or times.p90 is None or times.p99 is None:
        return ""
    return " / ".join(number(each) for each in (times.p50, times.p90, times.p99))


def number(value: float | None) -> str:
    """Three digits or all before the point."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def columns(summaries: Sequence[Summary], times: Sequence[str] = tuple(TIMES)) -> dict[str, list[str]]:
    """Name of a figure -> its text for each summary; figures that none of them has are left out."""
    each = [figures(summary, times) for summary in summaries]
    names = dict.fromkeys(name for one in each for name in one)
    table = {name: [one.get(name, "") for one in each] for name in names}
    return {name: texts for name, texts in table.items() if any(texts)}
