"""Messages beside the data path: heartbeats, epochs, attaching to text, cancelling."""

from typing import Annotated, Literal

import msgspec

from shared.messages.pipeline import PROTOCOL_VERSION

Number = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

# ---- workers and their leader ---------------------------------------------------------------------------------------


class WorkerHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Sent by each worker every 200 ms.

    worker: the incarnation, unique per process start. started, finished: newest step begun and ended in epoch.
    next_plan: step of the plan expected next. idle: no step runs and none is queued. leaving: drains, wants no new
    sequences. num_blocks, block_size: KV memory in blocks and tokens per block; max_num_seqs and
    max_num_batched_tokens bound one step; max_model_len bounds one sequence (tokens). num_swap_slots: blocks that the
    swap space holds. swap_us, compute_us: microseconds that a token's keys and values take to be swapped out and in
    again, and to be computed in a prompt; 0 where the worker does not know yet.
    """

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
    num_swap_slots: Number = 0
    swap_us: float = 0.0
    compute_us: float = 0.0


class CacheReport(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The worker is idle in a new epoch, and these blocks hold these contents.

    block_ids: int32. block_hashes: 16 bytes each (shared.block_hash), of full blocks only.
    """

    v: int = PROTOCOL_VERSION
    worker: str
    epoch: int
    block_ids: bytes = b""
    block_hashes: bytes = b""


class PlanGap(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A plan arrived beyond the next one expected: send again from step next_plan."""

    v: int = PROTOCOL_VERSION
    worker: str
    epoch: int
    next_plan: int


class ShardLoad(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What tokenizers and gateways must know to refuse early; numbers are sequences, shares from 0 to 1.

    num_folded_frames: engine steps folded under this leader; while it grows, work is done.
    num_queued_reqs, num_queued_tokens: requests that wait for their first step, and tokens of their prompts.
    """

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
    """Sent by the leading scheduler every 200 ms; takeover is the log sequence of its take-over.

    leaving: it was told to stop; a standby may take over at once, until then it leads on.
    """

    v: int = PROTOCOL_VERSION
    shard: str
    leader: str
    takeover: int
    load: ShardLoad
    leaving: bool = False


class GatewayHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Sent by each gateway every 250 ms: what its clients read is read (Request.owner, Reader)."""

    v: int = PROTOCOL_VERSION
    gateway: str


# ---- text -----------------------------------------------------------------------------------------------------------


class DetokenizerHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Sent every 250 ms: how far this detokenizer has folded; the log is not trimmed above it.

    leaving: it was told to stop, takes no new attachment, and serves on for a moment until its readers are elsewhere.
    """

    v: int = PROTOCOL_VERSION
    detokenizer: str
    folded: int
    leaving: bool = False


class Attach(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Read a request's text from these token positions on (one per choice; empty means from the start).

    inbox: subject of the deltas. number: echoed by each delta; the newest number of an inbox and request stands.
    style: "batch" for DeltaBatch, "json" or "msgpack" for the messages of a plain client.
    """

    v: int = PROTOCOL_VERSION
    request_id: str
    inbox: str
    number: int
    positions: tuple[int, ...] = ()
    style: Literal["batch", "json", "msgpack"] = "batch"


class Attached(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The detokenizer that serves this attachment; its batches to the inbox carry its name as source."""

    v: int = PROTOCOL_VERSION
    detokenizer: str


class Detach(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The reader of this attachment is gone. With an inbox: so are all attachments of that inbox to the request up to
    this number, wherever they are, those that are still on their way among them."""

    v: int = PROTOCOL_VERSION
    request_id: str
    number: int
    inbox: str = ""


class Describe(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What is a request, whoever sent it? wait_s: seconds that a detokenizer whose fold does not know it waits for it.
    with_prompt: the prompt's token ids are wanted too."""

    v: int = PROTOCOL_VERSION
    request_id: str
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    with_prompt: bool = False


class Described(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What the log says of a request: see pipeline.Request for what is named as there.

    found: the fold knows it; all below live is empty otherwise. forgotten: it has ended, and its text is gone. live:
    whether this detokenizer knew the end of the log, so that what it did not find was not there. num_choices: n.
    has_logprobs: whether its tokens carry log-probabilities. prompt_token_ids: int32 bytes.
    """

    v: int = PROTOCOL_VERSION
    detokenizer: str
    found: bool
    forgotten: bool = False
    live: bool = False
    num_choices: int = 1
    num_prompt_tokens: int = 0
    has_logprobs: bool = False
    model: str = ""
    created_ns: int = 0
    deadline_ns: int = 0
    owner: str = ""
    keep_s: float = 0.0
    origin: bytes = b""
    prompt_token_ids: bytes = b""


# ---- models ---------------------------------------------------------------------------------------------------------


class ModelCard(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A model that can be asked for by name; answers call it shown_as. created: Unix seconds. max_model_len: tokens."""

    name: str
    version: str
    max_model_len: int
    vocab_size: int
    created: int = 0
    root: str = ""
    shown_as: str = ""


class TokenizerHeartbeat(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Sent every 250 ms: the models that this tokenizer can prepare requests for."""

    v: int = PROTOCOL_VERSION
    tokenizer: str
    models: list[ModelCard] = []


# ---- messages of native clients (maps, JSON or msgpack) -------------------------------------------------------------


class CancelRequest(msgspec.Struct, kw_only=True):
    """On tb.v1.cancel."""

    request_id: str


class Cancelled(msgspec.Struct, tag_field="kind", tag="cancelled"):
    """Answer to a CancelRequest that has a reply subject: the cancel is in the log."""

    request_id: str


class AttachRequest(msgspec.Struct, kw_only=True):
    """On tb.v1.attach, with the inbox as reply subject."""

    request_id: str
    positions: list[int] = []
