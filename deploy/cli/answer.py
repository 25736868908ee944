"""Showing an answer while it comes, and how fast it came."""

import time
from collections.abc import Callable

import msgspec


class AnswerTimes(msgspec.Struct):
    """When the pieces of one answer came, in seconds of one monotonic clock.

    num_tokens: output tokens of the whole answer, known from its usage at the end.
    """

    asked: float
    first: float | None = None
    last: float | None = None
    num_tokens: int = 0

    def on_piece(self, now: float) -> None:
        """Text came."""
        if self.first is None:
            self.first = now
        self.last = now

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first is None else self.first - self.asked

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first one over the time that they took; None when there is nothing to divide."""
        if self.first is None or self.last is None or self.num_tokens < 2 or self.last <= self.first:
            return None
        return (self.num_tokens - 1) / (self.last - self.first)

    def summary(self) -> str:
        """One line, e.g. `8 tokens, time to first token 182 ms, then 41.2 tokens/s`."""
        parts = [f"{self.num_tokens} token{'' if self.num_tokens == 1 else 's'}"]
        if self.ttft_s is not None:
            parts.append(f"time to first token {self.ttft_s * 1000:.0f} ms")
        if self.tokens_per_s is not None:
            parts.append(f"then {self.tokens_per_s:.1f} tokens/s")
        return ", ".join(parts)


class AnswerPrinter:
    """Writes pieces of text as they come and keeps their times. write: gets text that must appear at once."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.times = AnswerTimes(asked=time.monotonic())

    def on_text(self, text: str) -> None:
        """A piece of the answer came."""
        self.times.on_piece(time.monotonic())
        self._write(text)

    def on_break(self) -> None:
        """The answer broke off: what is said next begins a line of its own."""
        if self.times.first is not None:
            self._write("\n")

    def on_end(self, num_tokens: int) -> str:
        """The answer is whole; the summary. The last token, EOS, brings no text: it comes now."""
        self.times.last = time.monotonic()
        self.times.num_tokens = num_tokens
        self._write("\n")
        return self.times.summary()
