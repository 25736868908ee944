"""The sampler's reports as messages."""

from collections.abc import Sequence

from kernels.sampling.rows import TokenLogprobs
from shared.messages.pipeline import RowLogprobs


def to_messages(reports: Sequence[TokenLogprobs | None]) -> list[RowLogprobs | None]:
    """One entry a row, or none at all if no row asked for log-probabilities."""
    if not any(reports):
        return []
    return [
        None if report is None else RowLogprobs(report.logprob, report.rank, report.top_ids, report.top_logprobs)
        for report in reports
    ]
