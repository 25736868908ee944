"""From the JSON body of a request to what is sent to the tokenizers (bad inputs 10 to 41)."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from shared.errors import context_length_exceeded, invalid
from shared.messages.control import ModelCard
from shared.messages.pipeline import PROTOCOL_VERSION, GenerateRequest
from shared.params import Params, validate_messages, validate_params, validate_prompts
from shared.params.fields import wrong
from shared.params.request import IGNORED

MAX_CHOICES = 128
# How the answer is sent and what stands in fields of its own; the rest of the body goes to the tokenizers.
KEPT_HERE = frozenset({"cache_salt", "messages", "model", "priority", "prompt", "stream", "stream_options", "user"})

TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

FindModel = Callable[[str], ModelCard]


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: one GenerateRequest per prompt, each with params.n choices."""

    chat: bool
    card: ModelCard
    params: Params
    requests: list[GenerateRequest]

    @property
    def model_shown(self) -> str:
        """What the answer calls the model: the first of the names under which it is served."""
        return self.card.shown_as or self.card.name

    @property
    def num_choices(self) -> int:
        """Choices of the answer, over all prompts."""
        return len(self.requests) * self.params.n


def prepare(
    body: dict[str, Any],
    *,
    chat: bool,
    find_model: FindModel,
    request_id: str,
    seed: int,
    now_s: float,
    deadline_s: float,
    traceparent: str = "",
) -> Prepared:
    """Check a body and make the requests of it.

    request_id: 32 hex digits, the id of the first prompt's request; the others follow from it. seed: used where the
    body names none. now_s: Unix time. traceparent: W3C's header, dropped when malformed.
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
    requests = [
        GenerateRequest(
            v=PROTOCOL_VERSION,
            model=card.name,
            prompt=prompt,
            messages=messages,
            params=passed_on,
            deadline_s=deadline_s,
            request_id=_derived_id(request_id, index),
            attach=False,
            priority=params.priority or 0,
            cache_salt=params.cache_salt or "",
            seed_default=(seed + index) % 2**63,
            created_s=now_s,
            traceparent=traceparent if TRACEPARENT.fullmatch(traceparent) else "",
        )
        for index, prompt in enumerate(prompts)
    ]
    return Prepared(chat=chat, card=card, params=params, requests=requests)


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


def _derived_id(request_id: str, index: int) -> str:
    """Ids of further prompts can be derived from the first one, and from nothing else."""
    if index == 0:
        return request_id
    return hashlib.sha256(f"{request_id}:{index}".encode("ascii")).hexdigest()[:32]
