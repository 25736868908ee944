"""Checks of single JSON values. Each returns the value in its type, or None where the client gave none or null."""

import math
from collections.abc import Mapping
from typing import Any

from shared.errors import RequestError, invalid

INT64_MAX = 2**63 - 1
SHOWN_CHARACTERS = 40


def shown(value: object) -> str:
    """A short form of a client's value for an error message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return str(value) if abs(value) < 10**SHOWN_CHARACTERS else "a number beyond all bounds"
    if isinstance(value, str):
        text = value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "…"
        return ascii(text)
    return "an array" if isinstance(value, list | tuple) else "an object"


def wrong(param: str, expected: str, value: object) -> RequestError:
    """The error for a value of the wrong type or out of bounds."""
    return invalid(f"{param} must be {expected}; got {shown(value)}.", param)


def is_integer(value: object) -> bool:
    """Whether this is a JSON integer (a JSON true is none)."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_text(value: str, param: str) -> str:
    """The text itself; RequestError if it holds lone surrogates, which no UTF-8 can carry."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid(f"{param} holds a lone surrogate, which is no Unicode text.", param) from None
    return value


def integer(params: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """An integer from low to high."""
    value = params.get(name)
    if value is None:
        return None
    if not is_integer(value) or not low <= value <= high:
        raise wrong(name, f"an integer from {low} to {high}", value)
    return int(value)


def number(params: Mapping[str, Any], name: str, low: float, high: float, low_excluded: bool = False) -> float | None:
    """A finite number from low to high."""
    value = params.get(name)
    if value is None:
        return None
    bounds = f"a number {'above' if low_excluded else 'from'} {low:g} {'up ' if low_excluded else ''}to {high:g}"
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(as_float(value)):
        raise wrong(name, bounds, value)
    if not low <= value <= high or (low_excluded and value == low):
        raise wrong(name, bounds, value)
    return float(value)


def as_float(value: int | float) -> float:
    """The number as a float; infinity for integers beyond any float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def boolean(params: Mapping[str, Any], name: str, default: bool) -> bool:
    """true or false."""
    value = params.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "true or false", value)
    return value


def string(params: Mapping[str, Any], name: str, max_characters: int) -> str | None:
    """A text of 1 to max_characters characters."""
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong(name, "a string", value)
    if not 1 <= len(value) <= max_characters:
        raise invalid(f"{name} must have 1 to {max_characters} characters; got {len(value)}.", name)
    return check_text(value, name)


def token_ids(params: Mapping[str, Any], name: str, max_items: int, vocab_size: int | None) -> tuple[int, ...] | None:
    """An array of at most max_items token ids."""
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise wrong(name, "an array of token ids", value)
    if len(value) > max_items:
        raise invalid(f"{name} may have at most {max_items} items; got {len(value)}.", name)
    for token_id in value:
        check_token_id(token_id, name, vocab_size)
    return tuple(value)


def check_token_id(value: object, param: str, vocab_size: int | None) -> None:
    """RequestError unless value is a token id of the vocabulary (or of any, where vocab_size is None)."""
    limit = vocab_size if vocab_size is not None else 2**31
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise wrong(param, f"made of token ids from 0 to {limit - 1}", value)
