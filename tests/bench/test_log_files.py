"""Which files belong to a log, and in which order; files that cannot be read."""

import gzip
from pathlib import Path

import pytest

from bench.log_files import LogFileError, read_lines, with_rotated


def test_the_oldest_comes_first_and_nothing_twice(tmp_path: Path) -> None:
    names = ["a.log", "a.log.1", "a.log.2.gz", "a.log.10", "b.log", "b.log.1"]
    others = ["a.log.1.swp", "a.log.old", "aXlog.1", "a.log.gz.1", "xa.log.1"]
    for name in (*names, *others):
        (tmp_path / name).touch()
    found = with_rotated([tmp_path / "a.log", tmp_path / "a.log.2.gz", tmp_path / "b.log"])
    assert [path.name for path in found] == ["a.log.10", "a.log.2.gz", "a.log.1", "a.log", "b.log.1", "b.log"]


def test_a_file_that_is_being_packed_is_taken_once(tmp_path: Path) -> None:
    for name in ("a.log", "a.log.1", "a.log.1.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in with_rotated([tmp_path / "a.log"])] == ["a.log.1", "a.log"]


def test_packed_and_plain_lines(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"1\n2\n"))
    (tmp_path / "b").write_bytes(b"3\n4")
    assert [line.strip() for line in read_lines([tmp_path / "a.gz", tmp_path / "b"])] == [b"1", b"2", b"3", b"4"]


PACKED = gzip.compress(b"line\n" * 100, mtime=0)
DAMAGED = PACKED[:12] + bytes([PACKED[12] ^ 0xFF]) + PACKED[13:]


@pytest.mark.parametrize("data", [None, b"no gzip", PACKED[:20], DAMAGED], ids=["no file", "plain", "cut", "damaged"])
def test_what_cannot_be_read_is_named(data: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(LogFileError, match=rf"{file}: .+"):
        list(read_lines(with_rotated([file])))


def test_a_log_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(LogFileError, match="No such file"):
        list(read_lines(with_rotated([tmp_path / "none" / "a.log"])))
