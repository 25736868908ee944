"""Keeping client text apart from a template's own: special tokens written by a client are text (bad input 18).

Before rendering, a mark (one character that occurs nowhere in the client's text) is put into client text wherever a
special token could come from it: inside one that it holds, after an end with which one begins, before a beginning with
which one ends. Every special token that the rendered text then shows was put together by the template alone. Templates
may still strip, compare and split client text, since nearly all of it carries no mark.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from shared.errors import invalid

NONCHARACTERS = range(0xFDD0, 0xFDF0)
PRIVATE_USE = range(0xF0000, 0xF1000)

# Parts of a checked message that the server itself has written or compared with a fixed list.
FIXED_KEYS = frozenset({"role", "type"})


class SpecialTokens:
    """The special tokens of one model, of two characters or more. ids: token id by content."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = {content: token_id for content, token_id in ids.items() if len(content) > 1}
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if self.ids else None
        self._beginnings = frozenset(content[:size] for content in self.ids for size in range(1, len(content)))
        self._endings = frozenset(content[size:] for content in self.ids for size in range(1, len(content)))
        self._longest = max(map(len, self.ids), default=0)

    def mark(self, text: str, mark: str) -> str:
        """The text with marks, such that no special token can be made of any of its characters."""
        if self._pattern is None or not text:
            return text
        sizes = range(1, min(self._longest, len(text)) + 1)
        begins = any(text[:size] in self._endings for size in sizes) or self._is_inner(text)
        ends = any(text[-size:] in self._beginnings for size in sizes)
        text = self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)
        return f"{mark if begins else ''}{text}{mark if ends else ''}"

    def split(self, text: str) -> Iterator[str | int]:
        """The text as ids of the special tokens in it and the texts between them."""
        start = 0
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            if match.start() > start:
                yield text[start : match.start()]
            yield self.ids[match[0]]
            start = match.end()
        if start < len(text):
            yield text[start:]

    def _is_inner(self, text: str) -> bool:
        return len(text) < self._longest and any(text in content for content in self.ids)


def choose_mark(texts: Iterable[str]) -> str:
    """A character that none of the texts holds. RequestError if they hold them all."""
    held = list(texts)
    for code in (*NONCHARACTERS, *PRIVATE_USE):
        if not any(chr(code) in text for text in held):
            return chr(code)
    raise invalid("The messages use every noncharacter and private-use character.", "messages")


def strings_in(value: Any) -> Iterator[str]:
    """All texts of a JSON value, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def mark_message(message: dict[str, Any], special: SpecialTokens, mark: str) -> dict[str, Any]:
    """A checked message (shared.params) with all that the client wrote in it marked."""
    copy = {key: value if key in FIXED_KEYS else mark_value(value, special, mark) for key, value in message.items()}
    if "tool_calls" in message:
        copy["tool_calls"] = [_mark_call(call, special, mark) for call in message["tool_calls"]]
    return copy


def mark_value(value: Any, special: SpecialTokens, mark: str) -> Any:
    """A JSON value of the client with all of its texts marked, keys among them."""
    if isinstance(value, str):
        return special.mark(value, mark)
    if isinstance(value, list):
        return [mark_value(item, special, mark) for item in value]
    if isinstance(value, dict):
        return {special.mark(str(key), mark): mark_value(item, special, mark) for key, item in value.items()}
    return value


def _mark_call(call: dict[str, Any], special: SpecialTokens, mark: str) -> dict[str, Any]:
    function = {key: mark_value(value, special, mark) for key, value in call["function"].items()}
    return {"id": special.mark(call["id"], mark), "type": call["type"], "function": function}
