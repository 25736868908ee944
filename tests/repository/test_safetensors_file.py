"""A safetensors header that lies is refused before any library sees the file."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.safetensors_file import read_safetensors_header


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def written(file: Path, header: bytes | dict[str, Any], data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return file


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.float16)}, file, metadata={"format": "np"})
    entries = read_safetensors_header(file)
    assert {name: (found.dtype, found.shape) for name, found in entries.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F16", (5,)),
    }


TWO = {"a": entry(0, 16, [4]), "b": entry(16, 32, [2, 2])}


@pytest.mark.parametrize(
    ("header", "num_bytes", "length", "reason"),
    [
        pytest.param(TWO, 32, 1 << 62, "header length", id="bad header length"),
        pytest.param(TWO, 32, (1 << 64) - 1, "header length", id="negative header length"),
        pytest.param(TWO, 32, 5, "not a safetensors header", id="short header length"),
        pytest.param({"a": entry(0, 16, [4]), "b": entry(8, 24, [4])}, 24, None, "overlaps", id="overlapping offsets"),
        pytest.param({"a": entry(0, 16, [4]), "b": entry(0, 16, [4])}, 16, None, "overlaps", id="same offsets"),
        pytest.param({"a": entry(0, 16, [1 << 32, 1 << 32])}, 16, None, "overflows", id="product overflow to zero"),
        pytest.param({"a": entry(0, 16, [(1 << 62) + 1, 4])}, 16, None, "overflows", id="product overflow to four"),
        pytest.param(TWO, 31, None, "truncated", id="truncated tail"),
        pytest.param(TWO, 33, None, "after the last tensor", id="bytes at the end"),
        pytest.param({"a": entry(4, 20, [4])}, 20, None, "gap", id="gap"),
        pytest.param({"a": entry(16, 0, [4])}, 16, None, "offsets", id="offsets backwards"),
        pytest.param({"a": entry(-16, 0, [4])}, 16, None, "offsets", id="negative offset"),
        pytest.param({"a": entry(0, 16, [-4])}, 16, None, "shape", id="negative size"),
        pytest.param({"a": entry(0, 16, [5])}, 16, None, "bytes of data", id="shape larger than its data"),
        pytest.param({"a": {"dtype": "F32", "shape": [4]}}, 16, None, "not a safetensors header", id="no offsets"),
        pytest.param(b"[1, 2]", 0, None, "not a safetensors header", id="header is a list"),
        pytest.param(b'{"a": ', 0, None, "not a safetensors header", id="broken JSON"),
        pytest.param(b"\xff\xfe{}", 0, None, "not a safetensors header", id="header is not UTF-8"),
        pytest.param(b'{"a":' + b"[" * 100_000, 0, None, "header", id="deep nesting"),
    ],
)
def test_a_lying_header_is_refused(
    tmp_path: Path, header: bytes | dict[str, Any], num_bytes: int, length: int | None, reason: str
) -> None:
    file = written(tmp_path / "model.safetensors", header, bytes(num_bytes), length)
    with pytest.raises(BadModelFile) as refused:
        read_safetensors_header(file)
    assert str(file) in str(refused.value)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 500


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "model.safetensors", {"a": entry(0, 4, [4], "F8_E4M3")}, bytes(4))
    with pytest.raises(UnsupportedModel, match="F8_E4M3"):
        read_safetensors_header(file)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(BadModelFile, match="too short"):
        read_safetensors_header(file)
