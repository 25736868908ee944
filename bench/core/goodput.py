"""Goodput: the requests that met their objective."""

from collections.abc import Sequence

import msgspec

from bench.core.outcome import Outcome
from bench.errors import BenchError

METRICS = ("ttft", "tpot", "e2el")


class ObjectiveError(BenchError):
    """An objective that cannot be read; the message names it."""


class Objective(msgspec.Struct, frozen=True):
    """Limits in milliseconds, None for no limit: time to first token, per output token after it, end to end."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Objective":
        """From vLLM's form, `ttft:200 tpot:50`. Raises ObjectiveError."""
        limits: dict[str, float] = {}
        for word in words:
            name, _, text = word.partition(":")
            try:
                limit = float(text)
            except ValueError:
                limit = -1.0
            if name not in METRICS or not 0 < limit < float("inf"):
                raise ObjectiveError(f"{word!r} is no objective: expected ttft:MS, tpot:MS or e2el:MS")
            limits[name] = limit
        return cls(**limits)

    def is_met(self, outcome: Outcome) -> bool:
        """Whether this request ended well and within all limits."""
        if not outcome.is_ok:
            return False
        measured = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2el": outcome.e2e_s}
        limits = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2el}
        return all(
            limit is None or (seconds := measured[name]) is None or 1e3 * seconds <= limit
            for name, limit in limits.items()
        )
