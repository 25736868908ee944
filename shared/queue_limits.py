"""How much may wait in a shard's queue (protocol rule 13). Tokenizers judge by it early, the leading scheduler exactly.

The queue holds the requests that wait for their first step. One that has begun is never refused, nor does it count
any more: a sequence that was preempted, or whose worker died, was let in before.
"""

import msgspec

QUEUE_FULL = "queue_full"


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """max_num_reqs: requests that may wait. max_num_tokens: tokens of their prompts that may wait; 0: any number."""

    max_num_reqs: int = 4096
    max_num_tokens: int = 0

    def refusal(self, num_reqs: int, num_tokens: int, num_prompt_tokens: int = 0) -> str | None:
        """Why a request may not join num_reqs requests with num_tokens prompt tokens, for its client; None if it may.

        A prompt longer than max_num_tokens is let into an empty queue, or it could never be served.
        """
        if num_reqs >= self.max_num_reqs:
            return f"The queue is full: {num_reqs} requests wait, {self.max_num_reqs} may."
        if self.max_num_tokens and num_tokens and num_tokens + num_prompt_tokens > self.max_num_tokens:
            return (
                f"The queue is full: {num_tokens} prompt tokens wait, {self.max_num_tokens} may, "
                f"and the request has {num_prompt_tokens}."
            )
        return None
