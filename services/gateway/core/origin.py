"""What stands in the log beside a request so that any gateway can answer it over HTTP (Request.origin)."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from services.gateway.core.shape import AnswerShape, answer_id
from shared.messages.codec import WireError, decoder, encode
from shared.messages.control import Described
from shared.params import Params

ORIGIN_VERSION = 1
MAX_PROMPTS = 128
NS_PER_S = 10**9

_encode_body = msgspec.json.Encoder(order="deterministic").encode


class Origin(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One prompt of an HTTP request. Fields are only ever appended, with defaults.

    model: as answers call it. index: of this prompt, of num_prompts. fingerprint: of the body, where the request can be
    asked for again by an idempotency key; else empty. What is read may come from anybody who can ask over NATS: the
    bounds hold for what a gateway looks up because of it.
    """

    v: int = ORIGIN_VERSION
    chat: bool
    model: str
    created: int
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PROMPTS)] = 0
    num_prompts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROMPTS)] = 1
    has_logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    fingerprint: bytes = b""


_decode = decoder(Origin)


def origin_of(shape: AnswerShape, index: int, fingerprint: bytes) -> bytes:
    """The bytes to be logged with the request of this prompt."""
    return encode(
        Origin(
            chat=shape.chat,
            model=shape.model,
            created=shape.created,
            index=index,
            num_prompts=shape.num_prompts,
            has_logprobs=shape.has_logprobs,
            return_token_ids=shape.return_token_ids,
            include_usage=shape.include_usage,
            continuous_usage=shape.continuous_usage,
            fingerprint=fingerprint,
        )
    )


def read_origin(described: Described) -> Origin:
    """The logged origin; that of a plain completion for requests that came straight over NATS, and for those whose
    origin no gateway can have written."""
    try:
        origin: Origin = _decode(described.origin)
    except WireError:
        return _plain(described)
    return origin


def _plain(described: Described) -> Origin:
    return Origin(
        chat=False,
        model=described.model,
        created=described.created_ns // NS_PER_S,
        has_logprobs=described.has_logprobs,
    )


def shape_of(origin: Origin, described: Described, request_id: str) -> AnswerShape:
    """How the request is answered as a stream, as its first client would have read it."""
    return AnswerShape(
        id=answer_id(request_id, origin.chat),
        chat=origin.chat,
        created=origin.created,
        model=origin.model,
        num_prompts=origin.num_prompts,
        n=described.num_choices,
        stream=True,
        has_logprobs=origin.has_logprobs,
        return_token_ids=origin.return_token_ids,
        include_usage=origin.include_usage,
        continuous_usage=origin.continuous_usage,
    )


def fingerprint(
    chat: bool,
    model: str,
    prompts: Sequence[str | list[int] | None],
    messages: list[dict[str, Any]] | None,
    params: Params,
) -> bytes:
    """SHA-256 of what is asked, in one form for all ways of writing it. How the answer is sent does not count: a
    client may first ask without stream and then with it."""
    asked = msgspec.structs.replace(
        params, stream=False, include_usage=False, continuous_usage=False, max_tokens_name="", unknown=()
    )
    return hashlib.sha256(_encode_body([chat, model, prompts, messages, asked])).digest()


def derived_id(request_id: str, index: int) -> str:
    """Ids of further prompts can be derived from the first one, and from nothing else."""
    if index == 0:
        return request_id
    return hashlib.sha256(f"{request_id}:{index}".encode("ascii")).hexdigest()[:32]
