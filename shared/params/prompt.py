"""Prompts of completions: a text or token ids, one or several (bad inputs 17, 21, 22)."""

from typing import Any

from shared.errors import invalid
from shared.params.fields import check_text, check_token_id, is_integer, wrong

MAX_PROMPTS = 128

Prompt = str | list[int]


def validate_prompts(value: Any, vocab_size: int | None = None) -> list[Prompt]:
    """The prompts of one HTTP call: of a string, strings, token ids, or arrays of token ids.

    Raises RequestError with param `prompt` for anything empty, mixed, out of range or above MAX_PROMPTS.
    """
    if isinstance(value, list) and value and not is_integer(value[0]):
        if len(value) > MAX_PROMPTS:
            raise invalid(f"prompt may hold at most {MAX_PROMPTS} prompts; got {len(value)}.", "prompt")
        kind = type(value[0])
        if not all(isinstance(item, kind) for item in value):
            raise invalid("prompt must not mix strings with arrays of token ids.", "prompt")
        return [validate_prompt(item, vocab_size) for item in value]
    return [validate_prompt(value, vocab_size)]


def validate_prompt(value: Any, vocab_size: int | None = None) -> Prompt:
    """One prompt: a text of at least one character or at least one token id."""
    if value is None:
        raise invalid("prompt is required.", "prompt")
    if not isinstance(value, str | list):
        raise wrong("prompt", "a string or an array of token ids", value)
    if not value:
        raise invalid("prompt must not be empty.", "prompt")
    if isinstance(value, str):
        return check_text(value, "prompt")
    for token_id in value:
        check_token_id(token_id, "prompt", vocab_size)
    return value
