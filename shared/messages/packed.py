"""Columns of numbers as raw little-endian bytes.

A msgpack list of a few thousand ids costs more than a millisecond to decode; the same ids as bytes cost a copy.
Columns: token ids and positions are int32, sequence ids and attach numbers uint64, prefix hashes uint32.
"""

import sys
from array import array
from collections.abc import Iterable

INT32 = "i"
UINT32 = "I"
UINT64 = "Q"


def pack(typecode: str, values: Iterable[int]) -> bytes:
    """Bytes of a column; OverflowError if a value does not fit."""
    column = array(typecode, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpack(typecode: str, data: bytes) -> "array[int]":
    """The column held in data; ValueError if its length is no multiple of the item size."""
    column = array(typecode)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Token ids as int32."""
    return pack(INT32, token_ids)


def unpack_tokens(data: bytes) -> "array[int]":
    """Token ids from int32 bytes."""
    return unpack(INT32, data)


def pack_part(column: "array[int]", start: int, stop: int) -> bytes:
    """Bytes of items start..stop-1 of a column."""
    part = column[start:stop]
    if sys.byteorder == "big":
        part.byteswap()
    return part.tobytes()
