"""The header of a GGUF file (metadata and tensor table), checked before anything is allocated for it.

Layout, little-endian: "GGUF", u32 version (2 or 3), u64 tensor count, u64 metadata count; the metadata (key, u32 type,
value); the tensor table (name, u32 dimension count, u64 dimensions, innermost first, u32 type, u64 offset); padding to
the alignment; the data. Strings are a u64 length and UTF-8 bytes. Counts and lengths are claims of whoever wrote the
file: each is compared with the bytes that are left before it is believed.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.repository.errors import BadModelFile, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 48
MAX_NAME_BYTES = 1 << 16
MAX_ENTRIES = 1 << 20

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LEAST_METADATA_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufType:
    """A tensor encoding: block_elements values in block_bytes bytes, along the innermost dimension."""

    name: str
    block_elements: int
    block_bytes: int


SUPPORTED_TYPES = {
    0: GgufType("F32", 1, 4),
    1: GgufType("F16", 1, 2),
    2: GgufType("Q4_0", 32, 18),
    3: GgufType("Q4_1", 32, 20),
    6: GgufType("Q5_0", 32, 22),
    7: GgufType("Q5_1", 32, 24),
    8: GgufType("Q8_0", 32, 34),
    12: GgufType("Q4_K", 256, 144),
    13: GgufType("Q5_K", 256, 176),
    14: GgufType("Q6_K", 256, 210),
    30: GgufType("BF16", 1, 2),
}

_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table. shape: outermost first, as torch has it. offset: bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: GgufType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The checked header of a GGUF file. metadata: scalars, strings and flat lists by key."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(file: Path) -> GgufFile:
    """Read and check the header of a GGUF file; tensor data stays on disk.

    Raises BadModelFile for a header that lies about itself, UnsupportedModel for a version or tensor type that is not
    read here.
    """
    try:
        with file.open("rb") as stream:
            if stream.read(4) != MAGIC:
                raise BadModelFile(file, "wrong magic, not a GGUF file")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Scanner(file, view).scan()
    except OSError as error:
        raise BadModelFile(file, f"cannot be read ({error.strerror})") from error


class _Scanner:
    """Walks the header once; position never passes the end of the file."""

    def __init__(self, file: Path, view: mmap.mmap) -> None:
        self.file = file
        self.view = view
        self.size = len(view)
        self.position = len(MAGIC)

    def scan(self) -> GgufFile:
        version = self._scalar("<I", "the version")
        if version not in VERSIONS:
            raise UnsupportedModel(self.file, f"GGUF version {version} is not supported; known versions: 2, 3")
        num_tensors = self._count("tensor count", _LEAST_TENSOR_BYTES)
        num_metadata = self._count("metadata count", _LEAST_METADATA_BYTES)
        metadata: dict[str, Any] = {}
        for _ in range(num_metadata):
            key = self._string("a metadata key", MAX_NAME_BYTES)
            if key in metadata:
                raise BadModelFile(self.file, f"metadata key {key[:80]} appears twice")
            metadata[key] = self._value(key)
        table = [self._tensor_row() for _ in range(num_tensors)]
        tensors = self._place(table, self._alignment(metadata))
        return GgufFile(self.file, metadata, tensors)

    def _take(self, num_bytes: int, what: str) -> int:
        """Position before the next num_bytes bytes, which are then behind us."""
        start = self.position
        if num_bytes > self.size - start:
            left = self.size - start
            raise BadModelFile(self.file, f"{what} needs {num_bytes} bytes, only {left} are left in the file")
        self.position = start + num_bytes
        return start

    def _scalar(self, layout: str, what: str) -> Any:
        start = self._take(struct.calcsize(layout), what)
        return struct.unpack_from(layout, self.view, start)[0]

    def _count(self, what: str, least_bytes: int) -> int:
        """A u64 count of things of at least least_bytes bytes each, all of which must fit the rest of the file."""
        count: int = self._scalar("<Q", f"the {what}")
        if count >> 63:
            raise BadModelFile(self.file, f"negative {what} {count - (1 << 64)}")
        if count > (self.size - self.position) // least_bytes or count > MAX_ENTRIES:
            raise BadModelFile(self.file, f"{what} {count} is more than the file can hold")
        return count

    def _string(self, what: str, max_bytes: int | None = None) -> str:
        num_bytes: int = self._scalar("<Q", f"the length of {what}")
        if num_bytes > self.size - self.position:
            raise BadModelFile(self.file, f"{what} claims {num_bytes} bytes, longer than the file")
        if max_bytes is not None and num_bytes > max_bytes:
            raise BadModelFile(self.file, f"{what} has {num_bytes} bytes, at most {max_bytes} are allowed")
        start = self._take(num_bytes, what)
        try:
            return self.view[start : start + num_bytes].decode()
        except UnicodeDecodeError:
            raise BadModelFile(self.file, f"{what} is not UTF-8") from None

    def _value(self, key: str) -> Any:
        shown = f"metadata {key[:80]}"
        kind = self._scalar("<I", f"the type of {shown}")
        if kind == _STRING:
            return self._string(shown)
        if kind == _ARRAY:
            return self._array(shown)
        if kind not in _SCALARS:
            raise BadModelFile(self.file, f"{shown} has the unknown type {kind}")
        return self._scalar(_SCALARS[kind], shown)

    def _array(self, shown: str) -> list[Any]:
        kind = self._scalar("<I", f"the type of {shown}")
        if kind == _STRING:
            count = self._count(f"length of {shown}", 8)
            return [self._string(shown) for _ in range(count)]
        if kind not in _SCALARS:
            raise BadModelFile(self.file, f"{shown} is a list of the unknown or nested type {kind}")
        item = _SCALARS[kind]
        count = self._count(f"length of {shown}", struct.calcsize(item))
        start = self._take(count * struct.calcsize(item), shown)
        return list(struct.unpack_from(f"<{count}{item[1]}", self.view, start))

    def _tensor_row(self) -> tuple[str, tuple[int, ...], GgufType, int]:
        """(name, shape with the outermost dimension first, type, offset in the data)."""
        name = self._string("a tensor name", MAX_NAME_BYTES)
        shown = f"tensor {name[:80]}"
        num_dims = self._scalar("<I", f"the dimension count of {shown}")
        if num_dims > MAX_DIMS:
            raise BadModelFile(self.file, f"{shown} has {num_dims} dimensions, at most {MAX_DIMS} are allowed")
        start = self._take(8 * num_dims, shown)
        shape = tuple(reversed(struct.unpack_from(f"<{num_dims}Q", self.view, start)))
        if math.prod(shape) > MAX_ELEMENTS:
            raise BadModelFile(self.file, f"the shape of {shown} overflows: {math.prod(shape)} elements")
        type_id = self._scalar("<I", f"the type of {shown}")
        if type_id not in SUPPORTED_TYPES:
            kind = _OTHER_TYPES.get(type_id, str(type_id))
            supported = ", ".join(sorted(known.name for known in SUPPORTED_TYPES.values()))
            raise UnsupportedModel(self.file, f"{shown} has type {kind}; supported: {supported}")
        offset = self._scalar("<Q", f"the offset of {shown}")
        return name, shape, SUPPORTED_TYPES[type_id], offset

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        is_power_of_two = type(alignment) is int and alignment > 0 and alignment & (alignment - 1) == 0
        if not is_power_of_two or alignment > MAX_ALIGNMENT:
            raise BadModelFile(self.file, "general.alignment is not a power of two of a sensible size")
        return int(alignment)

    def _place(self, table: list[tuple[str, tuple[int, ...], GgufType, int]], alignment: int) -> dict[str, GgufTensor]:
        """Tensors with offsets in the file; they must be aligned, disjoint and inside it."""
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in table:
            shown = f"tensor {name[:80]}"
            if name in tensors:
                raise BadModelFile(self.file, f"{shown} appears twice")
            if shape and shape[-1] % kind.block_elements:
                raise BadModelFile(self.file, f"{shown}: rows of {shape[-1]} do not divide into {kind.name} blocks")
            if offset % alignment:
                raise BadModelFile(self.file, f"{shown}: offset {offset} is not a multiple of {alignment}")
            num_bytes = math.prod(shape) // kind.block_elements * kind.block_bytes
            if data_start + offset + num_bytes > self.size:
                raise BadModelFile(self.file, f"truncated: {shown} ends beyond the file's {self.size} bytes")
            tensors[name] = GgufTensor(name, shape, kind, data_start + offset, num_bytes)
        position = data_start
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < position:
                raise BadModelFile(self.file, f"tensor {tensor.name[:80]} overlaps another one")
            position = tensor.offset + tensor.num_bytes
        return tensors
