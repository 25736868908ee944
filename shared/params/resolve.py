"""From checked parameters to Sampling: every default fixed, every bound checked against the model."""

from collections.abc import Callable, Mapping, Sequence

from shared.errors import context_length_exceeded, invalid
from shared.messages.sampling import Sampling
from shared.params.request import Params

DEFAULT_COMPLETION_TOKENS = 16
GREEDY_BELOW = 1e-5

EncodeWord = Callable[[str], Sequence[int]]


def resolve_sampling(
    params: Params,
    *,
    chat: bool,
    defaults: Mapping[str, float],
    eos_token_ids: Sequence[int],
    vocab_size: int,
    max_model_len: int,
    num_prompt_tokens: int,
    seed: int,
    encode_word: EncodeWord | None = None,
) -> Sampling:
    """The sampling of a request, as it is logged.

    defaults: temperature, top_p, top_k, min_p and repetition_penalty of the model's generation_config.json.
    seed: used where the request names none; the caller fixes it before the first send (protocol rule 12).
    encode_word: token ids of a text without special tokens; needed only for bad_words.
    max_tokens defaults to 16 in completions and to the remaining context in chat. Temperatures under 1e-5 are greedy.
    Raises RequestError for a prompt or max_tokens beyond the context and for token ids beyond the vocabulary.
    """
    max_tokens = _max_tokens(params, chat, max_model_len, num_prompt_tokens)
    if params.min_tokens > max_tokens:
        raise invalid(f"min_tokens ({params.min_tokens}) must not exceed max_tokens ({max_tokens}).", "min_tokens")
    _check_vocabulary(params, vocab_size)
    temperature = _first(params.temperature, defaults.get("temperature"), 1.0)
    top_k = int(_first(params.top_k, defaults.get("top_k"), 0))
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=params.min_tokens,
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=0 if top_k < 1 or top_k >= vocab_size else top_k,
        top_p=_first(params.top_p, defaults.get("top_p"), 1.0),
        min_p=_first(params.min_p, defaults.get("min_p"), 0.0),
        seed=params.seed if params.seed is not None else seed,
        n=params.n,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        eos_token_ids=() if params.ignore_eos else tuple(eos_token_ids),
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        logprobs=params.logprobs,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=_first(params.repetition_penalty, defaults.get("repetition_penalty"), 1.0),
        logit_bias=params.logit_bias,
        bad_token_ids=_bad_token_ids(params.bad_words, encode_word),
        allowed_token_ids=params.allowed_token_ids,
    )


def _first(given: float | None, default: float | None, otherwise: float) -> float:
    if given is not None:
        return given
    return float(default) if default is not None else otherwise


def _max_tokens(params: Params, chat: bool, max_model_len: int, num_prompt_tokens: int) -> int:
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise context_length_exceeded(num_prompt_tokens, max_model_len, "messages" if chat else "prompt")
    if params.max_tokens is None:
        return room if chat else min(room, DEFAULT_COMPLETION_TOKENS)
    if params.max_tokens > room:
        raise invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + params.max_tokens} tokens ({num_prompt_tokens} in the prompt, {params.max_tokens} "
            "in the completion). Please reduce one of them.",
            params.max_tokens_name,
            "context_length_exceeded",
        )
    return params.max_tokens


def _check_vocabulary(params: Params, vocab_size: int) -> None:
    """Once more, now that the vocabulary is known: an unchecked id would write into a neighbour's row of logits."""
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        for token_id in getattr(params, name):
            if not 0 <= token_id < vocab_size:
                raise invalid(f"{name} must be token ids from 0 to {vocab_size - 1}; got {token_id}.", name)


def _bad_token_ids(words: Sequence[str], encode_word: EncodeWord | None) -> tuple[int, ...]:
    if not words:
        return ()
    if encode_word is None:
        raise ValueError("bad_words can only be resolved with a tokenizer")
    banned: dict[int, None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = encode_word(text)
            if len(ids) != 1:
                raise invalid(
                    f"bad_words may only hold words of a single token; {word[:40]!a} has {len(ids)}.", "bad_words"
                )
            banned[ids[0]] = None
    return tuple(banned)
