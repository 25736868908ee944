"""What the fold knows: requests, their sequences, who leads, which step of which worker comes next."""

from array import array

import msgspec

from shared.endings import Endings
from shared.messages.packed import unpack_tokens
from shared.messages.pipeline import Done, EndReason, Request, RowLogprobs
from shared.messages.sampling import Sampling
from shared.prefix_hash import extend
from shared.sampling_seed import choice_seed

MAX_CHOICES = 256


def sequence_id(log_sequence: int, choice: int) -> int:
    """Id of a sequence: the log sequence of its Request, then 8 bits for the choice. Unique in the shard for ever."""
    return log_sequence << 8 | choice


class SequenceState:
    """One choice of a request as folded so far.

    tokens: output ids (int32). prefix_hash: CRC of prompt and tokens. end: final number of output tokens, None while
    it runs; reason says why. message, param and code explain an error or a rejection. logprobs: one entry per token
    if the request asks for them, else empty.
    """

    __slots__ = (
        "choice",
        "code",
        "end",
        "endings",
        "id",
        "logprobs",
        "message",
        "param",
        "prefix_hash",
        "reason",
        "request",
        "tokens",
    )

    def __init__(self, number: int, choice: int, request: Request, prefix_hash: int, endings: Endings) -> None:
        self.id = number
        self.choice = choice
        self.request = request
        self.prefix_hash = prefix_hash
        self.endings = endings
        self.tokens: array[int] = array("i")
        self.logprobs: list[RowLogprobs | None] = []
        self.end: int | None = None
        self.reason: EndReason | None = None
        self.message = ""
        self.param: str | None = None
        self.code: str | None = None

    @property
    def sampling(self) -> Sampling:
        """The request's sampling, with this choice's own seed where there are several (rule 16)."""
        sampling = self.request.sampling
        if sampling.n == 1:
            return sampling
        return msgspec.structs.replace(sampling, seed=choice_seed(sampling.seed, self.choice))

    def cut(self, position: int, reason: EndReason) -> None:
        """End at this position; tokens beyond it are overrun and go."""
        self.end, self.reason = position, reason
        del self.tokens[position:]
        del self.logprobs[position:]


class RequestState:
    """A folded request: its record, the log sequence of it, its choices, and the outcome once there is one.

    readers: gateways that read it, and unread_ns the log's time since when none does (None while one does); both only
    for a request that is kept for its readers (keep_s > 0).
    """

    __slots__ = ("done", "log_sequence", "num_prompt_tokens", "readers", "request", "sequences", "unread_ns")

    def __init__(self, request: Request, log_sequence: int) -> None:
        self.request = request
        self.log_sequence = log_sequence
        self.num_prompt_tokens = len(unpack_tokens(request.prompt_token_ids))
        self.done: Done | None = None
        self.readers: set[str] = {request.owner} if request.keep_s > 0 else set()
        self.unread_ns: int | None = None
        prompt_hash = extend(0, request.prompt_token_ids)
        endings = Endings(request.sampling)
        self.sequences = [
            SequenceState(sequence_id(log_sequence, choice), choice, request, prompt_hash, endings)
            for choice in range(request.sampling.n)
        ]

    @property
    def ended(self) -> bool:
        """Whether every choice has its end."""
        return all(sequence.end is not None for sequence in self.sequences)


class Tombstone(msgspec.Struct, array_like=True, frozen=True):
    """What is left of a request after it is forgotten, or of a cancel whose request has not come yet.

    log_sequence is 0 for an early cancel. clock_ns: when it was laid.
    """

    clock_ns: int
    log_sequence: int
    done: Done | None = None

    @property
    def is_early_cancel(self) -> bool:
        """Whether the request itself was never folded."""
        return self.log_sequence == 0
