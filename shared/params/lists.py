"""Checks of stop strings, banned words and logit biases (bad inputs 29 to 31)."""

import math
import re
from typing import Any

from shared.errors import invalid
from shared.params.fields import as_float, check_text, shown, wrong

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1000
MAX_BAD_WORDS = 256
MAX_LOGIT_BIASES = 4096
MAX_BIAS = 100.0

TOKEN_ID_KEY = re.compile(r"0|[1-9][0-9]{0,9}")


def validate_stop(value: Any) -> tuple[str, ...]:
    """Stop strings: one, or an array of at most MAX_STOPS, each of 1 to MAX_STOP_CHARACTERS characters."""
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise wrong("stop", "a string or an array of strings", value)
    if len(items) > MAX_STOPS:
        raise invalid(f"stop may have at most {MAX_STOPS} items; got {len(items)}.", "stop")
    return tuple(_bounded_text(item, "stop") for item in items)


def validate_bad_words(value: Any) -> tuple[str, ...]:
    """Words that must not be written; whether each is a single token is checked where a tokenizer is."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong("bad_words", "an array of strings", value)
    if len(value) > MAX_BAD_WORDS:
        raise invalid(f"bad_words may have at most {MAX_BAD_WORDS} items; got {len(value)}.", "bad_words")
    return tuple(_bounded_text(item, "bad_words") for item in value)


def validate_logit_bias(value: Any, vocab_size: int | None) -> dict[int, float]:
    """Biases from -100 to 100 by token id; the keys are strings in JSON and may be integers in msgpack."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong("logit_bias", "an object of token ids and biases", value)
    if len(value) > MAX_LOGIT_BIASES:
        raise invalid(f"logit_bias may have at most {MAX_LOGIT_BIASES} entries; got {len(value)}.", "logit_bias")
    limit = vocab_size if vocab_size is not None else 2**31
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if isinstance(key, bool) or not TOKEN_ID_KEY.fullmatch(str(key)) or int(key) >= limit:
            raise invalid(f"logit_bias keys must be token ids from 0 to {limit - 1}; got {shown(key)}.", "logit_bias")
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not _within(bias):
            raise invalid(f"logit_bias values must be numbers from -100 to 100; got {shown(bias)}.", "logit_bias")
        biases[int(key)] = float(bias)
    return biases


def _within(bias: int | float) -> bool:
    return math.isfinite(as_float(bias)) and -MAX_BIAS <= bias <= MAX_BIAS


def _bounded_text(item: Any, param: str) -> str:
    if not isinstance(item, str):
        raise wrong(param, "made of strings", item)
    if not 1 <= len(item) <= MAX_STOP_CHARACTERS:
        raise invalid(f"{param} items must have 1 to {MAX_STOP_CHARACTERS} characters; got {len(item)}.", param)
    return check_text(item, param)
