"""Text of a growing list of token ids, equal at every length to what the tokenizer's own decode gives.

A stream splits that text in two: settled text, which no further token can change, and a tail, which the next tokens
may still change (half a character, an open run of byte tokens). For every k: settled(k) + tail(k) == decode(ids[:k]),
and settled(k) is a prefix of settled(k + 1).
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream(Protocol):
    """One sequence's decoding state."""

    def push(self, token_id: int) -> str:
        """Take one more token; returns the text that became settled by it."""

    def tail(self) -> str:
        """The text that decode would give beyond the settled text if no token followed."""


class ByteLevelStream:
    """Byte-level BPE: tokens are bytes, and a character may be spread over several.

    pieces: by token id its text, or its bytes where these are not whole characters.
    """

    __slots__ = ("_decoder", "_has_half", "_pieces")

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self._pieces = pieces
        self._decoder = _new_utf8_decoder("replace")
        self._has_half = False

    def push(self, token_id: int) -> str:
        """See TextStream.push."""
        pieces = self._pieces
        if not 0 <= token_id < len(pieces):
            return ""
        piece = pieces[token_id]
        if piece.__class__ is str and not self._has_half:
            return piece
        text: str = self._decoder.decode(piece if isinstance(piece, bytes) else piece.encode())
        self._has_half = bool(self._decoder.getstate()[0])
        return text

    def tail(self) -> str:
        """See TextStream.tail."""
        pending = self._decoder.getstate()[0] if self._has_half else b""
        return pending.decode("utf-8", "replace") if pending else ""


class ByteFallbackStream:
    """SentencePiece with byte fallback: a run of byte tokens is text if all of it is UTF-8, else one U+FFFD a byte.

    So a run is settled only once another token ends it. pieces: by token id a text, the value of a byte token, or None
    for a token that is left out. strip: this character is removed up to num_strip times at the start of all text.
    """

    __slots__ = ("_num_strip", "_pieces", "_run", "_strip")

    def __init__(self, pieces: Sequence[str | int | None], strip: str = "", num_strip: int = 0) -> None:
        self._pieces = pieces
        self._strip = strip
        self._num_strip = num_strip
        self._run = bytearray()

    def push(self, token_id: int) -> str:
        """See TextStream.push."""
        piece = self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None
        if piece is None:
            return ""
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        text = piece
        if self._run:
            text = _run_text(self._run) + piece
            self._run.clear()
        if self._num_strip and text:
            stripped = self._stripped(text)
            self._num_strip = 0 if stripped else self._num_strip - len(text)
            return stripped
        return text

    def tail(self) -> str:
        """See TextStream.tail."""
        return self._stripped(_run_text(self._run)) if self._run else ""

    def _stripped(self, text: str) -> str:
        for _ in range(self._num_strip):
            text = text.removeprefix(self._strip)
        return text


def _run_text(run: bytearray) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * len(run)


class MetaspaceStream:
    """SentencePiece without bytes: the first token that is not left out loses its leading blank.

    first, other: text by token id as the first token and later; None for a token that is left out.
    """

    __slots__ = ("_first", "_other", "_started")

    def __init__(self, first: Sequence[str | None], other: Sequence[str | None]) -> None:
        self._first = first
        self._other = other
        self._started = False

    def push(self, token_id: int) -> str:
        """See TextStream.push."""
        pieces = self._other if self._started else self._first
        piece = pieces[token_id] if 0 <= token_id < len(pieces) else None
        if piece is None:
            return ""
        self._started = True
        return piece

    def tail(self) -> str:
        """See TextStream.tail."""
        return ""


class WholeStream:
    """Any other decoder: all ids are decoded anew for each token, which is exact and costs O(n) a token.

    Settled is what decode gives without trailing U+FFFD, as long as that only grows.
    """

    __slots__ = ("_settled", "_skip_special_tokens", "_tail", "_token_ids", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._token_ids: list[int] = []
        self._settled = ""
        self._tail = ""

    def push(self, token_id: int) -> str:
        """See TextStream.push."""
        if token_id < 0:
            return ""
        self._token_ids.append(token_id)
        whole = self._tokenizer.decode(self._token_ids, skip_special_tokens=self._skip_special_tokens)
        settled = whole.rstrip(REPLACEMENT)
        if not settled.startswith(self._settled):
            self._tail = whole[len(self._settled) :] if whole.startswith(self._settled) else ""
            return ""
        gained = settled[len(self._settled) :]
        self._settled, self._tail = settled, whole[len(settled) :]
        return gained

    def tail(self) -> str:
        """See TextStream.tail."""
        return self._tail
