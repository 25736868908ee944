"""What waits for its first step, counted as requests and as tokens of their prompts."""

from dataclasses import dataclass

from shared.messages.pipeline import Request

TOKEN_BYTES = 4


@dataclass(slots=True)
class _Queued:
    """A request that has not begun: tokens of its prompt, and how many of its sequences wait."""

    num_prompt_tokens: int
    num_sequences: int = 0


class Backlog:
    """Requests of which no sequence was ever bound to a worker; a prompt that several choices share counts once.

    What was preempted or lost its worker has begun and does not count again. A new leader has bound nothing yet, so
    under it every live request counts until it is bound. Each call is O(1).
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Queued] = {}
        self.num_tokens = 0

    @property
    def num_requests(self) -> int:
        """Requests in the queue."""
        return len(self._requests)

    def join(self, request: Request) -> None:
        """One more sequence of the request waits; call it for all of them before any is bound."""
        queued = self._requests.get(request.request_id)
        if queued is None:
            queued = _Queued(len(request.prompt_token_ids) // TOKEN_BYTES)
            self._requests[request.request_id] = queued
            self.num_tokens += queued.num_prompt_tokens
        queued.num_sequences += 1

    def begin(self, request: Request) -> None:
        """A sequence of the request is bound; harmless if others were before."""
        queued = self._requests.pop(request.request_id, None)
        if queued is not None:
            self.num_tokens -= queued.num_prompt_tokens

    def leave(self, request: Request) -> None:
        """A sequence of the request has ended; harmless if the request had begun."""
        queued = self._requests.get(request.request_id)
        if queued is not None:
            queued.num_sequences -= 1
            if not queued.num_sequences:
                self.begin(request)

    def check_integrity(self) -> list[str]:
        """What is wrong with the counters; empty when all is well."""
        num_tokens = sum(queued.num_prompt_tokens for queued in self._requests.values())
        return [] if num_tokens == self.num_tokens else [f"{num_tokens} prompt tokens wait, counted {self.num_tokens}"]
