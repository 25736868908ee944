"""Encoding and decoding of messages, with one error for everything that can be wrong with bytes from outside."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from shared.messages.pipeline import PROTOCOL_VERSION

T = TypeVar("T")

# Version 1 is the first. The next one is read too: during a rolling upgrade its writers are here already, and what it
# adds stands behind the fields that are known (docs/adr/0008-compatibility.md).
SUPPORTED_VERSIONS = frozenset({max(1, PROTOCOL_VERSION - 1), PROTOCOL_VERSION, PROTOCOL_VERSION + 1})

encode = msgspec.msgpack.Encoder().encode


class WireError(ValueError):
    """Bytes that are no valid message of the expected kind."""


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """A function from msgpack bytes to a message of this kind (a Struct or a union of tagged ones).

    Raises WireError on malformed bytes, wrong types, trailing bytes, absurd depth and foreign protocol versions.
    """
    decode = msgspec.msgpack.Decoder(kind).decode

    def checked(data: bytes) -> Any:
        try:
            message = decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise WireError(str(error) or type(error).__name__) from None
        if getattr(message, "v", PROTOCOL_VERSION) not in SUPPORTED_VERSIONS:
            raise WireError(f"protocol version {message.v} is not one of {sorted(SUPPORTED_VERSIONS)}")
        return message

    return checked


def client_decoder(kind: type[T]) -> Callable[[bytes], tuple[T, str]]:
    """Like decoder, for messages of plain clients: JSON if the first byte is `{`, else msgpack; returns the style."""
    from_json = msgspec.json.Decoder(kind).decode
    from_msgpack = msgspec.msgpack.Decoder(kind).decode

    def checked(data: bytes) -> tuple[T, str]:
        style = "json" if data[:1] == b"{" else "msgpack"
        try:
            message = from_json(data) if style == "json" else from_msgpack(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise WireError(str(error) or type(error).__name__) from None
        if getattr(message, "v", PROTOCOL_VERSION) not in SUPPORTED_VERSIONS:
            raise WireError(f"protocol version {getattr(message, 'v', None)} is not known here")
        return message, style

    return checked
