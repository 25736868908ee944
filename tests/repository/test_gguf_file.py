"""A GGUF header is believed only as far as the file's bytes go."""

import struct
from pathlib import Path

import pytest

from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.gguf_file import read_gguf

U32, STRING, ARRAY = 4, 8, 9


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def row(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(
    rows: list[bytes] = [],  # noqa: B006
    pairs: list[bytes] = [],  # noqa: B006
    magic: bytes = b"GGUF",
    version: int = 3,
    num_rows: int | None = None,
    num_pairs: int | None = None,
) -> bytes:
    counts = (len(rows) if num_rows is None else num_rows, len(pairs) if num_pairs is None else num_pairs)
    return magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(rows)


def padded(data: bytes, num_bytes: int) -> bytes:
    return data + bytes(-len(data) % 32) + bytes(num_bytes)


GOOD_ROW = row(b"a", [32, 2], 2, 0)


def test_reads_metadata_and_tensors(tmp_path: Path) -> None:
    names = struct.pack("<IQ", STRING, 2) + text(b"x") + text("é".encode())
    pairs = [pair(b"k", U32, struct.pack("<I", 7)), pair(b"s", STRING, text(b"v")), pair(b"list", ARRAY, names)]
    file = tmp_path / "model.gguf"
    file.write_bytes(padded(header([GOOD_ROW], pairs), 36))
    gguf = read_gguf(file)
    assert gguf.metadata == {"k": 7, "s": "v", "list": ["x", "é"]}
    tensor = gguf.tensors["a"]
    assert (tensor.shape, tensor.type.name, tensor.num_bytes) == ((2, 32), "Q4_0", 36)
    assert tensor.offset % 32 == 0
    assert tensor.offset + tensor.num_bytes == file.stat().st_size


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(header(magic=b"GGML"), "wrong magic", id="wrong magic"),
        pytest.param(b"", "wrong magic", id="empty file"),
        pytest.param(b"GGUF\x03", "version", id="ends in the version"),
        pytest.param(header(num_rows=(1 << 64) - 1), "negative tensor count -1", id="negative tensor count"),
        pytest.param(header(num_pairs=1 << 63), "negative metadata count", id="negative metadata count"),
        pytest.param(header(num_rows=HUGE), "tensor count", id="tensor count beyond the file"),
        pytest.param(header(num_pairs=HUGE), "metadata count", id="metadata count beyond the file"),
        pytest.param(
            header(pairs=[text(b"k", HUGE) + bytes(16)]), "longer than the file", id="key longer than the file"
        ),
        pytest.param(
            header(pairs=[pair(b"k", STRING, text(b"v", HUGE))]),
            "longer than the file",
            id="string longer than the file",
        ),
        pytest.param(
            header(pairs=[pair(b"k", STRING, text(b"v", (1 << 64) - 1))]), "longer than the file", id="negative string"
        ),
        pytest.param(
            header(pairs=[pair(b"k", ARRAY, struct.pack("<IQ", U32, HUGE))]), "length of", id="list beyond the file"
        ),
        pytest.param(
            header(pairs=[pair(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "nested", id="list of lists"
        ),
        pytest.param(header(pairs=[pair(b"k", 77, b"")]), "unknown type 77", id="unknown metadata type"),
        pytest.param(header(pairs=[pair(b"\xff", U32, bytes(4))]), "not UTF-8", id="key is not UTF-8"),
        pytest.param(header(pairs=[pair(b"k", U32, bytes(4))] * 2), "twice", id="key twice"),
        pytest.param(
            header(pairs=[pair(b"general.alignment", U32, struct.pack("<I", 24))]), "alignment", id="bad alignment"
        ),
        pytest.param(padded(header([GOOD_ROW]), 35), "truncated", id="truncated tail"),
        pytest.param(padded(header([row(b"a", [32, 2], 2, 1 << 62)]), 36), "truncated", id="offset beyond the file"),
        pytest.param(padded(header([row(b"a", [32], 2, 8)]), 36), "multiple of 32", id="offset not aligned"),
        pytest.param(padded(header([row(b"a", [33], 2, 0)]), 36), "blocks", id="row of broken blocks"),
        pytest.param(padded(header([row(b"a", [1 << 33, 1 << 33], 0, 0)]), 36), "overflows", id="product overflow"),
        pytest.param(padded(header([row(b"a", [1] * 5, 0, 0)]), 36), "dimensions", id="five dimensions"),
        pytest.param(padded(header([GOOD_ROW, GOOD_ROW]), 36), "twice", id="tensor twice"),
        pytest.param(
            padded(header([GOOD_ROW, row(b"b", [16], 0, 0)]), 128), "overlaps", id="overlapping tensors"
        ),
    ],
)  # fmt: skip
def test_a_lying_header_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(BadModelFile) as refused:
        read_gguf(file)
    assert str(file) in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(header(version=1), "version 1", id="old version"),
        pytest.param(padded(header([row(b"a", [256], 10, 0)]), 84), "Q2_K", id="other tensor type"),
    ],
)
def test_other_kinds_are_refused_with_the_known_ones(tmp_path: Path, data: bytes, reason: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(UnsupportedModel, match=reason):
        read_gguf(file)
