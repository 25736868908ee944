"""From what a client asks to the Request that is logged: a pure function of the message and the time of acceptance."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from services.tokenizer.core.served_model import ServedModel
from shared.errors import context_length_exceeded, invalid, model_not_found, timed_out
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import GenerateRequest, Request
from shared.params import Params, resolve_sampling, validate_messages, validate_params, validate_prompt
from shared.params.fields import INT64_MAX, string
from shared.params.request import MAX_CACHE_SALT_CHARACTERS
from shared.sampling_seed import request_seed

REQUEST_ID = re.compile(r"[0-9a-f]{32}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
MAX_DEADLINE_S = 24 * 3600.0
MAX_CLOCK_SKEW_S = 60.0
MAX_ABS_PRIORITY = 2**31 - 1
MAX_OWNER_CHARACTERS = 64
MAX_ORIGIN_BYTES = 4096
MAX_KEEP_S = 60.0


def check_request_id(request_id: str) -> str:
    """The id; RequestError unless it is 32 lower-case hex digits (128 random bits)."""
    if not REQUEST_ID.fullmatch(request_id):
        raise invalid("request_id must be 32 lower-case hexadecimal digits.", "request_id")
    return request_id


def prepare(
    generate: GenerateRequest,
    models: Mapping[str, ServedModel],
    *,
    request_id: str,
    worker_max_model_len: int,
    now_s: float,
) -> tuple[Request, Params]:
    """The record to append and the parameters as the client gave them.

    request_id: the client's, or one drawn for it. worker_max_model_len: the workers' limit in tokens, 0 if unknown.
    now_s: Unix time. Seed, version and deadline come from the message where it fixes them, else from request_id and
    now_s, so that a retry by the same sender is the same request (protocol rule 12).
    Raises RequestError; its param names what is wrong.
    """
    model = models.get(generate.model)
    if model is None:
        raise model_not_found(generate.model)
    created_s, deadline_s = _times(generate, now_s)
    chat = generate.messages is not None
    if chat == (generate.prompt is not None):
        raise invalid("Exactly one of prompt and messages must be given.", "messages" if chat else "prompt")
    params = validate_params(generate.params, chat=chat, vocab_size=model.vocab_size)
    max_model_len = model.context_length(worker_max_model_len)
    token_ids = _prompt_token_ids(generate, params, model, max_model_len, created_s)
    if not token_ids:
        name = "messages" if chat else "prompt"
        raise invalid(f"{name} must hold text that the model can read.", name)
    sampling = resolve_sampling(
        params,
        chat=chat,
        defaults=model.generation_defaults,
        eos_token_ids=model.eos_token_ids,
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        num_prompt_tokens=len(token_ids),
        seed=_seed_default(generate, request_id),
        encode_word=model.encoder.encode_word,
    )
    request = Request(
        request_id=request_id,
        model=model.root,
        model_version=model.version,
        prompt_token_ids=pack_tokens(token_ids),
        sampling=sampling,
        created_ns=int(created_s * 1e9),
        deadline_ns=int((created_s + deadline_s) * 1e9),
        priority=_priority(generate, params),
        cache_salt=_cache_salt(generate, params),
        traceparent=generate.traceparent if TRACEPARENT.fullmatch(generate.traceparent) else "",
        owner=_owner(generate),
        keep_s=_keep_s(generate),
        origin=_origin(generate),
    )
    return request, params


def _prompt_token_ids(
    generate: GenerateRequest, params: Params, model: ServedModel, max_model_len: int, created_s: float
) -> list[int]:
    if generate.messages is not None:
        return model.encoder.encode_chat(
            validate_messages(generate.messages),
            now=datetime.fromtimestamp(created_s, UTC),
            add_generation_prompt=params.add_generation_prompt,
            add_special_tokens=bool(params.add_special_tokens),
            template_arguments=params.chat_template_kwargs,
            max_tokens=max_model_len,
        )
    prompt = validate_prompt(generate.prompt, model.vocab_size)
    if isinstance(prompt, list):
        if len(prompt) >= max_model_len:
            raise context_length_exceeded(len(prompt), max_model_len, "prompt")
        return prompt
    return model.encoder.encode_text(prompt, params.add_special_tokens is not False, max_model_len)


def _times(generate: GenerateRequest, now_s: float) -> tuple[float, float]:
    """When the request was created (Unix seconds) and how long it may take (seconds)."""
    deadline_s = generate.deadline_s
    if not math.isfinite(deadline_s) or not 0 < deadline_s <= MAX_DEADLINE_S:
        raise invalid(f"deadline_s must be a number above 0 up to {MAX_DEADLINE_S:g}.", "deadline_s")
    created_s = now_s if generate.created_s is None else generate.created_s
    if not math.isfinite(created_s) or not 0 <= created_s <= now_s + MAX_CLOCK_SKEW_S:
        raise invalid("created_s must be a Unix time in seconds that is not in the future.", "created_s")
    if created_s + deadline_s <= now_s:
        raise timed_out("The request's deadline had passed before it was accepted.")
    return created_s, deadline_s


def _owner(generate: GenerateRequest) -> str:
    if len(generate.owner) > MAX_OWNER_CHARACTERS:
        raise invalid(f"owner may have at most {MAX_OWNER_CHARACTERS} characters.", "owner")
    return generate.owner


def _keep_s(generate: GenerateRequest) -> float:
    """A request without an owner is not kept for its readers: it runs to its end whoever reads."""
    if not 0 <= generate.keep_s <= MAX_KEEP_S:
        raise invalid(f"keep_s must be a number from 0 to {MAX_KEEP_S:g}.", "keep_s")
    return generate.keep_s if generate.owner else 0.0


def _origin(generate: GenerateRequest) -> bytes:
    if len(generate.origin) > MAX_ORIGIN_BYTES:
        raise invalid(f"origin may have at most {MAX_ORIGIN_BYTES} bytes.", "origin")
    return generate.origin


def _seed_default(generate: GenerateRequest, request_id: str) -> int:
    seed = generate.seed_default
    if seed is None:
        return request_seed(request_id)
    if not -INT64_MAX - 1 <= seed <= INT64_MAX:
        raise invalid("seed_default must be a 64-bit integer.", "seed_default")
    return seed


def _priority(generate: GenerateRequest, params: Params) -> int:
    priority = generate.priority or params.priority or 0
    if abs(priority) > MAX_ABS_PRIORITY:
        raise invalid(f"priority must be an integer from -{MAX_ABS_PRIORITY} to {MAX_ABS_PRIORITY}.", "priority")
    return priority


def _cache_salt(generate: GenerateRequest, params: Params) -> str:
    if generate.cache_salt:
        return string({"cache_salt": generate.cache_salt}, "cache_salt", MAX_CACHE_SALT_CHARACTERS) or ""
    return params.cache_salt or ""
