"""What a plain client reads on its inbox: maps in JSON or msgpack, told apart by `kind`."""

import msgspec

from shared.messages.pipeline import ErrorBody


class ClientTokenLogprob(msgspec.Struct, omit_defaults=True):
    """Log-probability of one token; top: the likeliest alternatives, as {token, token_id, logprob}."""

    token: str
    token_id: int
    logprob: float
    top: list["ClientTokenLogprob"] = []


class ClientChoice(msgspec.Struct, omit_defaults=True):
    """Text of one choice from one token position to another."""

    index: int
    from_: int = msgspec.field(name="from")
    to: int
    text: str
    token_ids: list[int]
    logprobs: list[ClientTokenLogprob] | None = None


class ClientDelta(msgspec.Struct, tag_field="kind", tag="delta"):
    """New text. seq counts from 1 within one attachment."""

    seq: int
    choices: list[ClientChoice]


class ClientEndChoice(msgspec.Struct, omit_defaults=True):
    """How one choice ended."""

    index: int
    finish_reason: str
    stop_reason: str | int | None = None


class ClientUsage(msgspec.Struct):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ClientEnd(msgspec.Struct, tag_field="kind", tag="end"):
    """The last message of a request that was served."""

    seq: int
    choices: list[ClientEndChoice]
    usage: ClientUsage


class ClientError(msgspec.Struct, tag_field="kind", tag="error"):
    """The last message of a request that failed."""

    error: ErrorBody


ClientMessage = ClientDelta | ClientEnd | ClientError
