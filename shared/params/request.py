"""The parameters of a completion or chat request beside its prompt, checked (bad inputs 23 to 41)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.errors import RequestError, invalid
from shared.params import fields
from shared.params.fields import wrong
from shared.params.lists import validate_bad_words, validate_logit_bias, validate_stop
from shared.params.template import validate_chat_template_kwargs
from shared.params.tools import validate_tools
from shared.params.unsupported import KNOWN_AND_UNSUPPORTED, refuse_unsupported

MAX_TOKENS = 2**31 - 1
MAX_N = 128
MAX_BEST_OF = 20
MAX_COMPLETION_LOGPROBS = 5
MAX_TOP_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 256
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_CACHE_SALT_CHARACTERS = 256
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0

IGNORED = frozenset(
    {"metadata", "parallel_tool_calls", "prediction", "reasoning_effort", "request_id", "safety_identifier"}
    | {"service_tier", "skip_reading_prefix_cache", "store", "user", "verbosity"}
)


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """Checked parameters of one request. None: the client did not say.

    max_tokens_name: which of the two names the client used, for error messages.
    logprobs: alternatives wanted beside each token, 0 for the token alone; None for no log-probabilities.
    stream, include_usage, return_token_ids: how the answer is sent; sampling does not depend on them.
    unknown: names that are not known here; they are ignored and counted.
    """

    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    min_tokens: int = 0
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    cache_salt: str | None = None
    priority: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    unknown: tuple[str, ...] = ()


# Names in the body that are checked elsewhere (prompt, messages, model) or below under another name.
_NOT_NAMES = {"continuous_usage", "include_usage", "max_tokens_name", "unknown"}
HANDLED = (frozenset(Params.__struct_fields__) - _NOT_NAMES) | {
    "best_of",
    "max_completion_tokens",
    "messages",
    "model",
    "prompt",
    "response_format",
    "stream_options",
    "tool_choice",
    "tools",
    "top_logprobs",
}
KNOWN = HANDLED | IGNORED | KNOWN_AND_UNSUPPORTED


def validate_params(params: Mapping[str, Any], *, chat: bool, vocab_size: int | None = None) -> Params:
    """Check a request body (model, prompt and messages may stand in it and are not looked at).

    vocab_size: None where no model is at hand; then token ids are only checked to be int32.
    Raises RequestError naming the parameter.
    """
    refuse_unsupported(params)
    validate_tools(params)
    max_tokens, max_tokens_name = _max_tokens(params)
    min_tokens = fields.integer(params, "min_tokens", 0, MAX_TOKENS) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(f"min_tokens ({min_tokens}) must not exceed {max_tokens_name} ({max_tokens}).", "min_tokens")
    stream = fields.boolean(params, "stream", False)
    include_usage, continuous_usage = _stream_options(params, stream)
    return Params(
        max_tokens=max_tokens,
        max_tokens_name=max_tokens_name,
        min_tokens=min_tokens,
        n=_num_choices(params, stream),
        temperature=fields.number(params, "temperature", 0.0, 2.0),
        top_p=fields.number(params, "top_p", 0.0, 1.0, low_excluded=True),
        top_k=fields.integer(params, "top_k", -1, MAX_TOKENS),
        min_p=fields.number(params, "min_p", 0.0, 1.0),
        presence_penalty=fields.number(params, "presence_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
        frequency_penalty=fields.number(params, "frequency_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
        repetition_penalty=fields.number(params, "repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
        seed=fields.integer(params, "seed", -fields.INT64_MAX - 1, fields.INT64_MAX),
        logprobs=_chat_logprobs(params) if chat else fields.integer(params, "logprobs", 0, MAX_COMPLETION_LOGPROBS),
        logit_bias=validate_logit_bias(params.get("logit_bias"), vocab_size),
        stop=validate_stop(params.get("stop")),
        stop_token_ids=fields.token_ids(params, "stop_token_ids", MAX_STOP_TOKEN_IDS, vocab_size) or (),
        allowed_token_ids=_allowed_token_ids(params, vocab_size),
        bad_words=validate_bad_words(params.get("bad_words")),
        ignore_eos=fields.boolean(params, "ignore_eos", False),
        include_stop_str_in_output=fields.boolean(params, "include_stop_str_in_output", False),
        skip_special_tokens=fields.boolean(params, "skip_special_tokens", True),
        add_special_tokens=_optional_boolean(params, "add_special_tokens"),
        add_generation_prompt=fields.boolean(params, "add_generation_prompt", True),
        chat_template_kwargs=validate_chat_template_kwargs(params.get("chat_template_kwargs")),
        cache_salt=fields.string(params, "cache_salt", MAX_CACHE_SALT_CHARACTERS),
        priority=fields.integer(params, "priority", -(2**31), 2**31 - 1),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        return_token_ids=fields.boolean(params, "return_token_ids", False),
        unknown=tuple(name for name in params if name not in KNOWN),
    )


def _max_tokens(params: Mapping[str, Any]) -> tuple[int | None, str]:
    old = fields.integer(params, "max_tokens", 1, MAX_TOKENS)
    new = fields.integer(params, "max_completion_tokens", 1, MAX_TOKENS)
    if old is not None and new is not None and old != new:
        raise invalid("max_tokens and max_completion_tokens are given and differ.", "max_completion_tokens")
    return (new, "max_completion_tokens") if new is not None else (old, "max_tokens")


def _num_choices(params: Mapping[str, Any], stream: bool) -> int:
    num_choices = fields.integer(params, "n", 1, MAX_N)
    best_of = fields.integer(params, "best_of", 1, MAX_BEST_OF)
    if best_of is None:
        return num_choices or 1
    if best_of < (num_choices or 1):
        raise invalid(f"best_of ({best_of}) must not be below n ({num_choices or 1}).", "best_of")
    if best_of > (num_choices or 1):
        raise invalid("best_of above n is not supported.", "best_of", "unsupported_parameter")
    return num_choices or 1


def _chat_logprobs(params: Mapping[str, Any]) -> int | None:
    wanted = fields.boolean(params, "logprobs", False)
    num_top = fields.integer(params, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if num_top is not None and not wanted:
        raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
    return (num_top or 0) if wanted else None


def _stream_options(params: Mapping[str, Any], stream: bool) -> tuple[bool, bool]:
    options = params.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise wrong("stream_options", "an object", options)
    if not stream:
        raise invalid("stream_options needs stream to be true.", "stream_options")
    try:
        return fields.boolean(options, "include_usage", False), fields.boolean(options, "continuous_usage_stats", False)
    except RequestError as error:
        raise invalid(error.message, f"stream_options.{error.param}") from None


def _allowed_token_ids(params: Mapping[str, Any], vocab_size: int | None) -> tuple[int, ...]:
    allowed = fields.token_ids(params, "allowed_token_ids", MAX_ALLOWED_TOKEN_IDS, vocab_size)
    if allowed == ():
        raise invalid("allowed_token_ids must not be empty.", "allowed_token_ids")
    return allowed or ()


def _optional_boolean(params: Mapping[str, Any], name: str) -> bool | None:
    return None if params.get(name) is None else fields.boolean(params, name, True)
