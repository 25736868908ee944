"""The header of a safetensors file, checked before any library is shown the file.

Layout: u64 little-endian header length N, N bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}}, then the
data. Offsets count from the end of the header; tensors must cover the data exactly, without gap or overlap.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shared.repository.errors import BadModelFile, UnsupportedModel

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 8
MAX_ELEMENTS = 1 << 48

FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
QUANTISED = {**FLOATS, "F8_E4M3": 1, "I8": 1, "I32": 4, "I64": 8}
"""Bytes of an item by dtype: what plain models hold, and what quantised ones do."""


class SafetensorsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the header. data_offsets: [begin, end) in bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_safetensors_header(file: Path, item_bytes: Mapping[str, int] = FLOATS) -> dict[str, SafetensorsEntry]:
    """Name -> entry of a safetensors file, every bound checked against the file's real size.

    item_bytes: of the dtypes that may be in it. Raises BadModelFile for a header that lies (length, shapes, offsets,
    truncated data), UnsupportedModel for another dtype.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise BadModelFile(file, f"{size} bytes long, too short for a safetensors header")
            (header_bytes,) = struct.unpack("<Q", prefix)
            if header_bytes > MAX_HEADER_BYTES or 8 + header_bytes > size:
                raise BadModelFile(file, f"header length {header_bytes} is more than the file's {size} bytes allow")
            header = stream.read(header_bytes)
    except OSError as error:
        raise BadModelFile(file, f"cannot be read ({error.strerror})") from error
    entries = _decode(file, header)
    for name, entry in entries.items():
        _check_entry(file, name, entry, item_bytes)
    _check_layout(file, entries, data_bytes=size - 8 - header_bytes)
    return entries


def _decode(file: Path, header: bytes) -> dict[str, SafetensorsEntry]:
    try:
        document = msgspec.json.decode(header, type=dict[str, Any])
        document.pop("__metadata__", None)
        return msgspec.convert(document, dict[str, SafetensorsEntry])
    except RecursionError:
        raise BadModelFile(file, "header is JSON nested too deeply") from None
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadModelFile(file, f"header is not a safetensors header ({error})") from error


def _check_entry(file: Path, name: str, entry: SafetensorsEntry, item_bytes: Mapping[str, int]) -> None:
    shown = name[:80]
    if entry.dtype not in item_bytes:
        supported = ", ".join(item_bytes)
        raise UnsupportedModel(file, f"tensor {shown} has dtype {entry.dtype[:20]}; supported: {supported}")
    if len(entry.shape) > MAX_DIMS or any(size < 0 for size in entry.shape):
        raise BadModelFile(file, f"tensor {shown} has an impossible shape")
    num_elements = math.prod(entry.shape)
    if num_elements > MAX_ELEMENTS:
        raise BadModelFile(file, f"the shape of tensor {shown} overflows: {num_elements} elements")
    begin, end = entry.data_offsets
    if not 0 <= begin <= end:
        raise BadModelFile(file, f"tensor {shown} has impossible offsets [{begin}, {end}]")
    num_bytes = num_elements * item_bytes[entry.dtype]
    if end - begin != num_bytes:
        reason = f"tensor {shown} has {end - begin} bytes of data, its shape and dtype need"
        raise BadModelFile(file, f"{reason} {num_bytes}")


def _check_layout(file: Path, entries: dict[str, SafetensorsEntry], data_bytes: int) -> None:
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin < position:
            raise BadModelFile(file, f"tensor {name[:80]} overlaps another one at offset {begin}")
        if begin > position:
            raise BadModelFile(file, f"there is a gap before tensor {name[:80]} at offset {begin}")
        position = end
    if position > data_bytes:
        raise BadModelFile(file, f"truncated: tensors need {position} bytes of data, the file holds {data_bytes}")
    if position < data_bytes:
        raise BadModelFile(file, f"{data_bytes - position} bytes after the last tensor")
