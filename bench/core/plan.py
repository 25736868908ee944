"""What is going to be asked: prompts with their lengths, answers with theirs, and when."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in both forms a server may take. text encodes to token_ids, special tokens included; token_ids is
    empty if no tokenizer was at hand, and then num_tokens is an estimate."""

    text: str
    token_ids: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """due_s: seconds after the start of the load at which it is sent; 0 unless the load is an open loop."""

    prompt: Prompt
    max_tokens: int
    due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """max_concurrency: that many requests at a time, the next one as soon as one ends; None: each is sent when it is
    due, however many run. With both, a request waits until it is due and then for its turn."""

    name: str
    requests: Sequence[PlannedRequest]
    max_concurrency: int | None = None
