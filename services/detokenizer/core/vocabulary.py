"""What each token of a model's tokenizer stands for, prepared once so that decoding a token is a look-up."""

import json
import re
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from services.detokenizer.core.streams import (
    ByteFallbackStream,
    ByteLevelStream,
    MetaspaceStream,
    TextStream,
    WholeStream,
)

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
MAX_CACHED_TEXTS = 65536


def byte_of_character() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable characters stand for their own byte, others are moved up from U+0100 on.

    Source: OpenAI's GPT-2 encoder, bytes_to_unicode.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


class Vocabulary:
    """The tokens of one tokenizer. num_tokens counts ids from 0, added tokens included."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.num_tokens = max(tokenizer.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._tokens = [tokenizer.id_to_token(token_id) for token_id in range(self.num_tokens)]
        steps = _decoder_steps(tokenizer)
        self._kind = _kind_of(steps)
        self._steps = steps
        self._pieces: dict[bool, Any] = {skip: self._make_pieces(skip) for skip in (False, True)}
        self.token_text = lru_cache(MAX_CACHED_TEXTS)(self._token_text)

    def stream(self, skip_special_tokens: bool) -> TextStream:
        """A fresh decoding state for one sequence."""
        pieces = self._pieces[skip_special_tokens]
        if self._kind == "byte_level":
            return ByteLevelStream(pieces)
        if self._kind == "byte_fallback":
            strip = self._steps[3] if len(self._steps) > 3 else {}
            return ByteFallbackStream(pieces, strip.get("content", ""), strip.get("start", 0))
        if self._kind == "metaspace":
            return MetaspaceStream(*pieces)
        return WholeStream(self.tokenizer, skip_special_tokens)

    def _token_text(self, token_id: int) -> str:
        """Text of a single token as log-probabilities show it: blanks kept, special tokens by name, half characters
        as U+FFFD."""
        token = self._tokens[token_id] if 0 <= token_id < self.num_tokens else None
        if token is None:
            return ""
        pieces = self._pieces[False]
        if self._kind == "byte_level":
            piece = pieces[token_id]
            return piece if isinstance(piece, str) else str(piece.decode("utf-8", "replace"))
        if self._kind == "byte_fallback":
            piece = pieces[token_id]
            return piece if isinstance(piece, str) else bytes([piece]).decode("utf-8", "replace")
        if self._kind == "metaspace":
            return str(pieces[1][token_id])
        return str(self.tokenizer.decode([token_id], skip_special_tokens=False))

    def _make_pieces(self, skip_special_tokens: bool) -> Any:
        left_out = self.special_ids if skip_special_tokens else frozenset()
        tokens = [None if token_id in left_out else token for token_id, token in enumerate(self._tokens)]
        if self._kind == "byte_level":
            alphabet = byte_of_character()
            return ["" if token is None else _whole_text(_token_bytes(token, alphabet)) for token in tokens]
        if self._kind == "byte_fallback":
            replace = self._steps[0]
            return [_fallback_piece(token, replace["pattern"]["String"], replace["content"]) for token in tokens]
        if self._kind == "metaspace":
            mark = self._steps[0]["replacement"]
            first_blank = " " if self._steps[0].get("prepend_scheme") == "never" else ""
            first = [None if token is None else token.replace(mark, first_blank) for token in tokens]
            return first, [None if token is None else token.replace(mark, " ") for token in tokens]
        return None


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        return []
    description = json.loads(tokenizer.decoder.__getstate__())
    return list(description["decoders"]) if description["type"] == "Sequence" else [description]


def _kind_of(steps: list[dict[str, Any]]) -> str:
    """byte_level, byte_fallback and metaspace have streams of their own; whole stands for every other decoder."""
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return "byte_level"
    if types == ["Metaspace"]:
        return "metaspace"
    if types[:3] == ["Replace", "ByteFallback", "Fuse"] and "String" in steps[0]["pattern"]:
        strips_start_only = types[3:] == ["Strip"] and steps[3]["stop"] == 0
        if len(types) == 3 or strips_start_only:
            return "byte_fallback"
    return "whole"


def _token_bytes(token: str, alphabet: dict[str, int]) -> bytes:
    """Bytes of a byte-level token; an added token with characters outside the alphabet stands for itself."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def _whole_text(data: bytes) -> str | bytes:
    """The text of whole characters; other bytes as they are."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _fallback_piece(token: str | None, mark: str, blank: str) -> str | int | None:
    if token is None:
        return None
    text = token.replace(mark, blank)
    byte = BYTE_TOKEN.fullmatch(text)
    return int(byte.group(1), 16) if byte else text
