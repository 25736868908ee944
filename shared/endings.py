"""Where a sequence ends by its own tokens: EOS, a stop token, its length.

A pure function of sampling and tokens, so that worker, fold and scheduler agree without talking. Stop strings end a
sequence by its text and are the detokenizer's; see protocol rule 6.
"""

from shared.messages.pipeline import EndReason
from shared.messages.sampling import Sampling

# what clients are told of an end that is no failure; every other reason is an error
FINISH_REASONS: dict[EndReason, str] = {
    "eos": "stop",
    "stop_token": "stop",
    "stop_string": "stop",
    "length": "length",
    "cancel": "abort",
}


class Endings:
    """The endings of one sequence. enders: token id -> reason, empty for most requests with ignore_eos."""

    __slots__ = ("enders", "max_tokens", "min_tokens")

    def __init__(self, sampling: Sampling) -> None:
        self.max_tokens = sampling.max_tokens
        self.min_tokens = sampling.min_tokens
        self.enders: dict[int, EndReason] = dict.fromkeys(sampling.stop_token_ids, "stop_token")
        self.enders.update(dict.fromkeys(sampling.eos_token_ids, "eos"))

    def after(self, token_id: int, num_output_tokens: int) -> EndReason | None:
        """Reason for which the sequence ends with this token as its num_output_tokens-th, or None.

        An ender counts from position min_tokens on: the first min_tokens tokens are free of them. EOS and stop token
        go before length when both hold.
        """
        reason = self.enders.get(token_id)
        if reason is not None and num_output_tokens > self.min_tokens:
            return reason
        return "length" if num_output_tokens >= self.max_tokens else None
