"""Structs of release 0.2 as they were. Made by tests.wire.freeze; never edited."""

from typing import Annotated, Any, Literal

import msgspec

class Sampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    bad_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()

PROTOCOL_VERSION = 1

class GenerateRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    v: int
    model: str
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    params: dict[str, Any] = {}
    deadline_s: float = 600.0
    request_id: str | None = None
    attach: bool = True
    priority: int = 0
    cache_salt: str = ''
    seed_default: int | None = None
    created_s: float | None = None
    traceparent: str = ''
    owner: str = ''
    keep_s: float = 0.0
    origin: bytes = b''

class Accepted(msgspec.Struct, tag_field='kind', tag='accepted'):
    request_id: str
    num_prompt_tokens: int = 0
    shard: str = 's0'
    prompt_token_ids: list[int] | None = None

class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None

class Refused(msgspec.Struct, tag_field='kind', tag='error'):
    error: ErrorBody
    status: int = 400
    retry_after_s: float | None = None

class Request(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    model: str
    model_version: str
    prompt_token_ids: bytes
    sampling: Sampling
    deadline_ns: int
    created_ns: int = 0
    priority: int = 0
    cache_salt: str = ''
    traceparent: str = ''
    owner: str = ''
    keep_s: float = 0.0
    origin: bytes = b''

class NewSequence(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    sequence: int
    sampling: Sampling
    num_prompt_tokens: int
    num_tokens: int
    num_cached_tokens: int = 0
    block_ids: bytes = b''
    history: bytes = b''
    cache_key: str = ''

class EpochStart(msgspec.Struct, array_like=True, tag='epoch', frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    epoch: int

class StepPlan(msgspec.Struct, array_like=True, tag='plan', frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    epoch: int
    step: int
    new: list[NewSequence] = []
    sequences: bytes = b''
    start: bytes = b''
    num_scheduled: bytes = b''
    num_given: bytes = b''
    position: bytes = b''
    token_ids: bytes = b''
    num_new_blocks: bytes = b''
    new_blocks: bytes = b''
    forget: bytes = b''
    part: int = 0
    num_parts: int = 1

class RowLogprobs(msgspec.Struct, array_like=True, frozen=True):
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()

class RowError(msgspec.Struct, array_like=True, frozen=True):
    sequence: int
    message: str

class Rows(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    worker: str
    epoch: int
    step: int
    sequences: bytes = b''
    positions: bytes = b''
    tokens: bytes = b''
    prefix_hashes: bytes = b''
    logprobs: list[RowLogprobs | None] = []
    errors: list[RowError] = []

EndReason = Literal['eos', 'stop_token', 'stop_string', 'length', 'cancel', 'deadline', 'rejected', 'error', 'quarantined']

class End(msgspec.Struct, array_like=True, tag='end', frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    choice: int = -1
    reason: EndReason
    position: int | None = None
    message: str = ''
    param: str | None = None
    code: str | None = None

class Done(msgspec.Struct, array_like=True, tag='done', frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    positions: tuple[int, ...]
    reasons: tuple[EndReason, ...]

class Reader(msgspec.Struct, array_like=True, tag='reader', frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    gateway: str
    reads: bool

class Fence(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    kind: Literal['takeover', 'worker', 'keep']
    leader: str
    worker: str = ''

class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    token: str
    token_id: int
    logprob: float
    offset: int = 0
    top: tuple[tuple[str, float, int], ...] = ()

class Delta(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    attach: int
    choice: int
    start: int
    stop: int
    text: str
    token_ids: bytes = b''
    logprobs: list[TokenLogprob] = []
    end: EndReason | None = None
    stop_reason: str | int | None = None
    error: ErrorBody | None = None
    num_prompt_tokens: int = 0

class DeltaBatch(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    source: str
    number: int
    deltas: list[Delta] = []

Number = Annotated[int, msgspec.Meta(ge=0)]

Limit = Annotated[int, msgspec.Meta(ge=1, le=2 ** 31 - 1)]

class WorkerHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    worker: str
    epoch: Number
    next_plan: Number
    started: Number
    finished: Number
    idle: bool
    leaving: bool
    model: str
    model_version: str
    num_blocks: Limit
    block_size: Limit
    max_num_seqs: Limit
    max_num_batched_tokens: Limit
    max_model_len: Limit
    enable_prefix_caching: bool = True

class CacheReport(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    worker: str
    epoch: int
    block_ids: bytes = b''
    block_hashes: bytes = b''

class PlanGap(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    worker: str
    epoch: int
    next_plan: int

class ShardLoad(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    num_workers: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    kv_cache_usage: float = 0.0
    log_full: bool = False
    max_model_len: int = 0
    num_folded_frames: int = 0
    num_queued_reqs: int = 0
    num_queued_tokens: int = 0

class LeaderHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    shard: str
    leader: str
    takeover: int
    load: ShardLoad
    leaving: bool = False

class GatewayHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    gateway: str

class DetokenizerHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    detokenizer: str
    folded: int
    leaving: bool = False

class Attach(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    inbox: str
    number: int
    positions: tuple[int, ...] = ()
    style: Literal['batch', 'json', 'msgpack'] = 'batch'

class Attached(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    detokenizer: str

class Detach(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    number: int
    inbox: str = ''

class Describe(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    request_id: str
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    with_prompt: bool = False

class Described(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    detokenizer: str
    found: bool
    forgotten: bool = False
    live: bool = False
    num_choices: int = 1
    num_prompt_tokens: int = 0
    has_logprobs: bool = False
    model: str = ''
    created_ns: int = 0
    deadline_ns: int = 0
    owner: str = ''
    keep_s: float = 0.0
    origin: bytes = b''
    prompt_token_ids: bytes = b''

class ModelCard(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    name: str
    version: str
    max_model_len: int
    vocab_size: int
    created: int = 0
    root: str = ''
    shown_as: str = ''

class TokenizerHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    v: int = PROTOCOL_VERSION
    tokenizer: str
    models: list[ModelCard] = []

class CancelRequest(msgspec.Struct, kw_only=True):
    request_id: str

class Cancelled(msgspec.Struct, tag_field='kind', tag='cancelled'):
    request_id: str

class AttachRequest(msgspec.Struct, kw_only=True):
    request_id: str
    positions: list[int] = []

class ClientTokenLogprob(msgspec.Struct, omit_defaults=True):
    token: str
    token_id: int
    logprob: float
    top: list['ClientTokenLogprob'] = []

class ClientChoice(msgspec.Struct, omit_defaults=True):
    index: int
    from_: int = msgspec.field(name='from')
    to: int
    text: str
    token_ids: list[int]
    logprobs: list[ClientTokenLogprob] | None = None

class ClientDelta(msgspec.Struct, tag_field='kind', tag='delta'):
    seq: int
    choices: list[ClientChoice]

class ClientEndChoice(msgspec.Struct, omit_defaults=True):
    index: int
    finish_reason: str
    stop_reason: str | int | None = None

class ClientUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

class ClientEnd(msgspec.Struct, tag_field='kind', tag='end'):
    seq: int
    choices: list[ClientEndChoice]
    usage: ClientUsage

class ClientError(msgspec.Struct, tag_field='kind', tag='error'):
    error: ErrorBody

ClientMessage = ClientDelta | ClientEnd | ClientError

MAX_CHOICES = 256

class Tombstone(msgspec.Struct, array_like=True, frozen=True):
    clock_ns: int
    log_sequence: int
    done: Done | None = None

class SequenceImage(msgspec.Struct, array_like=True, frozen=True):
    tokens: bytes
    prefix_hash: int
    end: int | None
    reason: EndReason | None
    message: str
    param: str | None
    code: str | None
    logprobs: list[RowLogprobs | None]

class RequestImage(msgspec.Struct, array_like=True, frozen=True):
    request: Request
    log_sequence: int
    done: Done | None
    sequences: list[SequenceImage]
    readers: list[str] = []
    unread_ns: int | None = None

class FoldImage(msgspec.Struct, array_like=True, frozen=True):
    v: int
    seq: int
    clock_ns: int
    leader: str
    takeover: int
    newest_fence: int
    worker_fences: dict[str, int]
    next_steps: dict[str, int]
    requests: list[RequestImage]
    finished: list[tuple[int, str]]
    tombstones: dict[str, Tombstone]
    retired: dict[int, str]
    counts: dict[str, int]
    finished_resumable: list[tuple[int, str]] = []

IMAGE_VERSION = 1
