"""What became of one request, as its client saw it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """Times are seconds of one clock whose zero is the start of the load; None until it happened.

    begun_s: when it was sent, or when it was due if nothing held it back: what an overloaded client delays counts.
    An arrival is one read from the socket that brought at least one event with a token. gaps_s: seconds between
    successive arrivals, neither divided by the events or tokens that came together nor padded with zeros for them:
    a reader waited once, and that long. num_usage_tokens: output tokens as the server billed them, None if it did not.
    finish_reason: the server's word for why the answer ended. error: why it failed; "" if it is whole. code: the
    server's own word for it.
    """

    begun_s: float = 0.0
    late_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    ended_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    num_events: int = 0
    num_wanted: int = 0
    num_prompt_tokens: int = 0
    num_usage_tokens: int | None = None
    status: int = 0
    finish_reason: str = ""
    error: str = ""
    code: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.error

    @property
    def num_output_tokens(self) -> int:
        """Billed tokens; where the server bills none, events with a token."""
        return self.num_events if self.num_usage_tokens is None else self.num_usage_tokens

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_s is None else self.first_s - self.begun_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for a single token.

        Tokens that came with the first arrival leave one out, as everywhere in the field.
        """
        if self.first_s is None or self.last_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """From its begin to the end of its stream, or to its refusal."""
        return self.ended_s - self.begun_s
