"""Every message of the data path, in the order in which a request meets them.

1. GenerateRequest   client or gateway -> tokenizer    core request on tb.v1.infer
2. Request           tokenizer -> log                  acknowledged append; the acknowledgement is the acceptance
3. StepPlan          scheduler -> worker               core, two steps ahead of the results
4. Rows              worker -> log                     one frame per engine step, appended without waiting
5. DeltaBatch        detokenizer -> gateway            core, one batch per step and gateway

Back edges into the log: End (stop string, cancel, deadline, rejection), Done (the one outcome), Reader (who reads a
request that is kept for its readers), Fence (who leads, whose output counts). All internal messages are msgpack arrays:
fields are only ever appended, with defaults, so that release N reads N-1 and the reverse.
"""

from typing import Any, Literal

import msgspec

from shared.messages.sampling import Sampling

PROTOCOL_VERSION = 1

# ---- 1. client or gateway -> tokenizer ------------------------------------------------------------------------------


class GenerateRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a client asks for. A map on the wire, JSON or msgpack, since people write it by hand.

    params: OpenAI's and vLLM's sampling names, checked by shared.params. Exactly one of prompt and messages is set.
    deadline_s: seconds from acceptance until the request is ended with reason "deadline".
    request_id: 32 hex digits chosen by the client, so that it can retry; None lets the tokenizer choose.
    attach: whether the tokenizer attaches the reply inbox to the text. Gateways attach by themselves.
    seed_default, created_s: fixed by the first sender so that a retry is byte for byte the same request.
    owner, keep_s, origin: set by gateways, see Request.
    """

    v: int
    model: str
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    params: dict[str, Any] = {}
    deadline_s: float = 600.0
    request_id: str | None = None
    attach: bool = True
    priority: int = 0
    cache_salt: str = ""
    seed_default: int | None = None
    created_s: float | None = None
    traceparent: str = ""
    owner: str = ""
    keep_s: float = 0.0
    origin: bytes = b""


class Accepted(msgspec.Struct, tag_field="kind", tag="accepted"):
    """The request is stored in the log of shard; usage counts num_prompt_tokens once.

    prompt_token_ids: set where params.return_token_ids asks for them.
    """

    request_id: str
    num_prompt_tokens: int = 0
    shard: str = "s0"
    prompt_token_ids: list[int] | None = None


class ErrorBody(msgspec.Struct):
    """OpenAI's error object; all four keys are always present."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Refused(msgspec.Struct, tag_field="kind", tag="error"):
    """A request that was not accepted, or a stream that cannot go on. status is the HTTP status it maps to."""

    error: ErrorBody
    status: int = 400
    retry_after_s: float | None = None


# ---- 2. tokenizer -> log --------------------------------------------------------------------------------------------


class Request(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """An accepted request: shard, seed, model version and deadline are fixed here and never change.

    prompt_token_ids: int32 bytes. deadline_ns: Unix time. The log sequence L of this record numbers its sequences:
    choice i of the request is sequence `L << 8 | i` (see shared.log.fold.sequence_id).
    owner: the gateway incarnation whose client reads it; "" for a request that runs to its end whoever reads.
    keep_s: seconds that it goes on once nobody reads it; 0 ends it at once with its owner.
    origin: what a gateway must know to answer it over HTTP; opaque to everybody else.
    """

    v: int = PROTOCOL_VERSION
    request_id: str
    model: str
    model_version: str
    prompt_token_ids: bytes
    sampling: Sampling
    deadline_ns: int
    created_ns: int = 0
    priority: int = 0
    cache_salt: str = ""
    traceparent: str = ""
    owner: str = ""
    keep_s: float = 0.0
    origin: bytes = b""


# ---- 3. scheduler -> worker -----------------------------------------------------------------------------------------


class NewSequence(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """All a worker must know of a sequence before it computes its first step of this epoch.

    num_tokens: prompt and output tokens known (folded) now; num_prompt_tokens of them are the prompt.
    num_cached_tokens: tokens whose KV already lies in the first blocks of block_ids (a prefix-cache hit). The worker
    continues its prefix hash from what it knows of these blocks, so a wrong hit shows as a prefix mismatch.
    block_ids: int32 bytes, the blocks held before this step (the cached ones).
    history: int32 bytes of all num_tokens ids, only where penalties need them, else empty.
    cache_key: salt of the block hashes (tenant salt, model, version, adapter).
    """

    sequence: int
    sampling: Sampling
    num_prompt_tokens: int
    num_tokens: int
    num_cached_tokens: int = 0
    block_ids: bytes = b""
    history: bytes = b""
    cache_key: str = ""


class EpochStart(msgspec.Struct, array_like=True, tag="epoch", frozen=True, kw_only=True):
    """The leader opens an epoch of this worker: it finishes its step, drops queued plans and sequences, and answers
    with a CacheReport. Repeated until the report comes; no plan of the epoch is sent before."""

    v: int = PROTOCOL_VERSION
    epoch: int


class StepPlan(msgspec.Struct, array_like=True, tag="plan", frozen=True, kw_only=True):
    """One engine step of one worker, as columns over the scheduled sequences.

    sequences: uint64. start: int32, first token index computed for each (tokens below it are in the KV cache).
    num_scheduled: int32, tokens computed for each. num_given: int32, how many of these the plan holds in token_ids;
    the rest (at most the last one) is the token that the worker itself sampled last.
    position: int32, output position of the token sampled from the last computed one, -1 when nothing is sampled.
    token_ids: int32, concatenated over sequences. new_blocks: int32, concatenated; num_new_blocks: int32 counts,
    appended to each sequence's block table before the step.
    forget: uint64, sequences whose state the worker drops before the step.
    part, num_parts: a plan too large for one message travels in parts; the worker joins them (columns concatenate).
    swap_out: int32 pairs (block, slot): before anything else of the step, what the block holds goes to this slot of the
    worker's swap space. swap_in: int32 pairs (slot, block): then it comes back from there.
    """

    v: int = PROTOCOL_VERSION
    epoch: int
    step: int
    new: list[NewSequence] = []
    sequences: bytes = b""
    start: bytes = b""
    num_scheduled: bytes = b""
    num_given: bytes = b""
    position: bytes = b""
    token_ids: bytes = b""
    num_new_blocks: bytes = b""
    new_blocks: bytes = b""
    forget: bytes = b""
    part: int = 0
    num_parts: int = 1
    swap_out: bytes = b""
    swap_in: bytes = b""


# ---- 4. worker -> log -----------------------------------------------------------------------------------------------


class RowLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities of one sampled token: its own, its rank (1 is the likeliest) and the top alternatives."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class RowError(msgspec.Struct, array_like=True, frozen=True):
    """The engine could not compute this sequence (NaN logits, out of memory); only its request fails."""

    sequence: int
    message: str


class Rows(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The output of one engine step of one worker incarnation, as columns over the sampled rows.

    sequences: uint64. positions: int32 output position of each token. tokens: int32. prefix_hashes: uint32, CRC of
    the prompt and output ids that the token was computed on. logprobs: per row, None without; empty if no row has any.
    """

    v: int = PROTOCOL_VERSION
    worker: str
    epoch: int
    step: int
    sequences: bytes = b""
    positions: bytes = b""
    tokens: bytes = b""
    prefix_hashes: bytes = b""
    logprobs: list[RowLogprobs | None] = []
    errors: list[RowError] = []


# ---- back edges into the log ----------------------------------------------------------------------------------------

EndReason = Literal[
    "eos", "stop_token", "stop_string", "length", "cancel", "deadline", "rejected", "error", "quarantined"
]


class End(msgspec.Struct, array_like=True, tag="end", frozen=True, kw_only=True):
    """A sequence ends at a position. position None: the count folded at this record (cancel, deadline).

    choice: index of the sequence in its request, -1 for all. message: for the client, with rejected and error.
    """

    v: int = PROTOCOL_VERSION
    request_id: str
    choice: int = -1
    reason: EndReason
    position: int | None = None
    message: str = ""
    param: str | None = None
    code: str | None = None


class Done(msgspec.Struct, array_like=True, tag="done", frozen=True, kw_only=True):
    """The outcome of a request, one position and reason per choice; the first in the log is the only one."""

    v: int = PROTOCOL_VERSION
    request_id: str
    positions: tuple[int, ...]
    reasons: tuple[EndReason, ...]


class Reader(msgspec.Struct, array_like=True, tag="reader", frozen=True, kw_only=True):
    """A gateway begins to read a request with keep_s, or reads it no more. Written by the gateway itself, and by the
    leader for a gateway that has fallen silent."""

    v: int = PROTOCOL_VERSION
    request_id: str
    gateway: str
    reads: bool


class Fence(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """takeover: leader leads and every worker starts a new epoch. worker: that one's epoch ends. keep: moves nothing,
    but stays in the log when older fences are trimmed, so that compare-and-set goes on working."""

    v: int = PROTOCOL_VERSION
    kind: Literal["takeover", "worker", "keep"]
    leader: str
    worker: str = ""


# ---- 5. detokenizer -> gateway --------------------------------------------------------------------------------------


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    """Log-probability of one token with its text; top: (text, logprob, token id) of the alternatives."""

    token: str
    token_id: int
    logprob: float
    offset: int = 0
    top: tuple[tuple[str, float, int], ...] = ()


class Delta(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """Text of one choice between two token positions: start is what the reader had, stop what it has now.

    attach: the reader's attach number; a reader drops every other. end: set once, with the last delta of the choice.
    """

    attach: int
    choice: int
    start: int
    stop: int
    text: str
    token_ids: bytes = b""
    logprobs: list[TokenLogprob] = []
    end: EndReason | None = None
    stop_reason: str | int | None = None
    error: ErrorBody | None = None
    num_prompt_tokens: int = 0


class DeltaBatch(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """All deltas of one folded frame for one inbox. number counts from 1 per (source, inbox); a batch without deltas
    is the heartbeat and repeats the last number."""

    v: int = PROTOCOL_VERSION
    source: str
    number: int
    deltas: list[Delta] = []
