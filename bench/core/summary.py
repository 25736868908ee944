"""One row of figures from the outcomes of a load."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bench.core.goodput import Objective
from bench.core.outcome import Outcome
from bench.core.percentiles import Distribution, distribution_ms

MAX_ERROR_CHARS = 120


class Summary(msgspec.Struct, kw_only=True):
    """Figures have vLLM's names where it has one; times are milliseconds.

    ttft, tpot, itl, e2el: of whole answers only. itl: gaps between arrivals (Outcome says what one is);
    tokens_per_arrival tells how many tokens such a gap stands for. refused: answered 429 or 503; refusal: how long
    that took. cpu_us_per_output_token and the memory (MB of 1e6 bytes): by process, with "total" for their sum; empty
    if no process was watched. late: how much later than due this client sent the requests of an open loop.
    """

    name: str
    num_prompts: int
    max_concurrency: int | None
    completed: int
    failed: int
    refused: int
    errors: dict[str, int]
    duration: float
    total_input_tokens: int
    total_output_tokens: int
    num_events: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    request_goodput: float | None
    goodput_share: float | None
    tokens_per_arrival: float | None
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2el: Distribution
    refusal: Distribution
    late: Distribution
    client_cpu_us_per_output_token: float | None
    cpu_us_per_output_token: dict[str, float] = {}
    resident_mb: dict[str, float] = {}
    peak_resident_mb: dict[str, float] = {}


def summarize(
    name: str,
    outcomes: Sequence[Outcome],
    seconds: float,
    *,
    max_concurrency: int | None = None,
    objective: Objective | None = None,
    client_cpu_s: float = 0.0,
) -> Summary:
    """seconds: from the start of the load to the end of its last request. Without an objective there is no goodput."""
    whole = [outcome for outcome in outcomes if outcome.is_ok]
    refused = [outcome for outcome in outcomes if outcome.status in (429, 503)]
    num_input = sum(outcome.num_prompt_tokens for outcome in whole)
    num_output = sum(outcome.num_output_tokens for outcome in whole)
    num_arrivals = sum(len(outcome.gaps_s) + (outcome.first_s is not None) for outcome in whole)
    num_good = sum(objective.is_met(outcome) for outcome in outcomes) if objective else None
    return Summary(
        name=name,
        num_prompts=len(outcomes),
        max_concurrency=max_concurrency,
        completed=len(whole),
        failed=len(outcomes) - len(whole),
        refused=len(refused),
        errors=_errors(outcomes),
        duration=round(seconds, 3),
        total_input_tokens=num_input,
        total_output_tokens=num_output,
        num_events=sum(outcome.num_events for outcome in whole),
        request_throughput=round(len(whole) / seconds, 3),
        output_throughput=round(num_output / seconds, 1),
        total_token_throughput=round((num_input + num_output) / seconds, 1),
        request_goodput=None if num_good is None else round(num_good / seconds, 3),
        goodput_share=None if num_good is None else round(num_good / max(1, len(outcomes)), 4),
        tokens_per_arrival=round(num_output / num_arrivals, 3) if num_arrivals else None,
        ttft=distribution_ms([each for outcome in whole if (each := outcome.ttft_s) is not None]),
        tpot=distribution_ms([each for outcome in whole if (each := outcome.tpot_s) is not None]),
        itl=distribution_ms([gap for outcome in whole for gap in outcome.gaps_s]),
        e2el=distribution_ms([outcome.e2e_s for outcome in whole]),
        refusal=distribution_ms([outcome.e2e_s for outcome in refused]),
        late=distribution_ms([outcome.late_s for outcome in outcomes] if max_concurrency is None else []),
        client_cpu_us_per_output_token=per_token_us(client_cpu_s, num_output),
    )


def add_processes(
    summary: Summary, cpu_s: Mapping[str, float], resident: Mapping[str, int], peak: Mapping[str, int]
) -> None:
    """CPU seconds during the load, and bytes of memory after it, by process."""
    summary.cpu_us_per_output_token = {
        name: each
        for name, seconds in with_total(cpu_s).items()
        if (each := per_token_us(seconds, summary.total_output_tokens)) is not None
    }
    summary.resident_mb = {name: round(each / 1e6, 1) for name, each in with_total(resident).items()}
    summary.peak_resident_mb = {name: round(each / 1e6, 1) for name, each in with_total(peak).items()}


def figure_of(summary: Summary, field: str, part: str) -> float | None:
    """None if it was not measured. part: percentile, or key of a figure by process; "" for a plain number."""
    found = getattr(summary, field)
    if part:
        found = found.get(part) if isinstance(found, dict) else getattr(found, part)
    return None if found is None else float(found)


def with_total(values: Mapping[str, float]) -> dict[str, float]:
    """The same and their sum, if there are any."""
    return {**values, "total": sum(values.values())} if values else {}


def per_token_us(seconds: float, num_tokens: int) -> float | None:
    """Microseconds per token; None without tokens."""
    return round(1e6 * seconds / num_tokens, 2) if num_tokens else None


def _errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How often which error came, the most frequent first."""
    texts = (outcome.code or outcome.error[:MAX_ERROR_CHARS] for outcome in outcomes if outcome.error)
    return dict(Counter(texts).most_common())
