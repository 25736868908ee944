"""From the JSON body of a request to what is sent to the tokenizers (bad inputs 10 to 41)."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from services.gateway.core.origin import MAX_PROMPTS, derived_id, fingerprint, origin_of
from services.gateway.core.request_headers import Wishes
from services.gateway.core.shape import AnswerShape, answer_id
from shared.errors import context_length_exceeded, invalid
from shared.messages.control import ModelCard
from shared.messages.pipeline import PROTOCOL_VERSION, GenerateRequest
from shared.params import Params, validate_messages, validate_params, validate_prompts
from shared.params.fields import wrong
from shared.params.request import IGNORED

MAX_CHOICES = MAX_PROMPTS  # of all prompts together
# How the answer is sent and what stands in fields of its own; the rest of the body goes to the tokenizers.
KEPT_HERE = frozenset({"cache_salt", "messages", "model", "priority", "prompt", "stream", "stream_options", "user"})

TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

FindModel = Callable[[str], ModelCard]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: one GenerateRequest per prompt, each with params.n choices. fingerprint: see core.origin;
    empty where the request has no idempotency key."""

    shape: AnswerShape
    params: Params
    requests: list[GenerateRequest]
    fingerprint: bytes


def prepare(
    body: dict[str, Any],
    *,
    chat: bool,
    find_model: FindModel,
    request_id: str,
    seed: int,
    now_s: float,
    deadline_s: float,
    wishes: Wishes,
    owner: str,
    traceparent: str = "",
) -> Prepared:
    """Check a body and make the requests of it.

    request_id: 32 hex digits, the id of the first prompt's request; the others follow from it. seed: used where the
    body names none. now_s: Unix time. deadline_s: where the client wishes no shorter one. owner: this gateway's
    incarnation. traceparent: W3C's header, dropped when malformed.
    Raises RequestError naming the parameter.
    """
    card = find_model(_model_name(body))
    params = validate_params(body, chat=chat, vocab_size=card.vocab_size)
    prompts: list[str | list[int] | None] = [None]
    messages = None
    if chat:
        messages = validate_messages(body.get("messages"))
    else:
        prompts = [_within_context(prompt, card) for prompt in validate_prompts(body.get("prompt"), card.vocab_size)]
    if len(prompts) * params.n > MAX_CHOICES:
        raise invalid(f"n times the number of prompts must not exceed {MAX_CHOICES}.", "n")
    passed_on = _passed_on(body, params)
    mark = fingerprint(chat, card.name, prompts, messages, params) if wishes.key else b""
    shape = AnswerShape(
        id=answer_id(request_id, chat),
        chat=chat,
        created=int(now_s),
        model=card.shown_as or card.name,
        num_prompts=len(prompts),
        n=params.n,
        stream=params.stream,
        has_logprobs=params.logprobs is not None,
        return_token_ids=params.return_token_ids,
        include_usage=params.include_usage,
        continuous_usage=params.include_usage and params.continuous_usage,
    )
    requests = [
        GenerateRequest(
            v=PROTOCOL_VERSION,
            model=card.name,
            prompt=prompt,
            messages=messages,
            params=passed_on,
            deadline_s=wishes.timeout_s or deadline_s,
            request_id=derived_id(request_id, index),
            attach=False,
            priority=params.priority or 0,
            cache_salt=params.cache_salt or "",
            seed_default=(seed + index) % 2**63,
            created_s=now_s,
            traceparent=traceparent if TRACEPARENT.fullmatch(traceparent) else "",
            owner=owner,
            keep_s=wishes.keep_s,
            origin=origin_of(shape, index, mark),
        )
        for index, prompt in enumerate(prompts)
    ]
    return Prepared(shape=shape, params=params, requests=requests, fingerprint=mark)


def _model_name(body: dict[str, Any]) -> str:
    name = body.get("model")
    if name is None:
        raise invalid("model is required.", "model")
    if not isinstance(name, str):
        raise wrong("model", "a string", name)
    return name


def _within_context(prompt: str | list[int], card: ModelCard) -> str | list[int]:
    """Token ids that can never fit are refused here, before they travel."""
    if isinstance(prompt, list) and card.max_model_len and len(prompt) >= card.max_model_len:
        raise context_length_exceeded(len(prompt), card.max_model_len, "prompt")
    return prompt


def _passed_on(body: dict[str, Any], params: Params) -> dict[str, Any]:
    left_out = KEPT_HERE.union(IGNORED, params.unknown)
    return {name: value for name, value in body.items() if value is not None and name not in left_out}
