"""Log files with what has been rotated out of them.

A node keeps `gateway-0.log.1`, of the run before. Elsewhere something like logrotate makes `.1`, `.2.gz` and so on, the
larger the number the older.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


class LogFileError(Exception):
    """A file that cannot be read; the message names it."""


def with_rotated(logs: Sequence[Path]) -> list[Path]:
    """Each log after what was rotated out of it, the oldest first. No file twice, whoever names it; one that is there
    as `.1` and as `.1.gz` is just being packed, and is taken as it was."""
    found: dict[Path, Path] = {}
    for log in logs:
        pattern = re.compile(re.escape(log.name) + r"\.(\d+)(\.gz)?")
        matches = {path: match for path in _beside(log) if (match := pattern.fullmatch(path.name))}
        plain = {path for path, match in matches.items() if not match[2]}
        rotated = [path for path in matches if path.suffix != ".gz" or path.with_suffix("") not in plain]
        for path in (*sorted(rotated, key=lambda path: -int(matches[path][1])), log):
            found.setdefault(path.absolute(), path)
    return list(found.values())


def read_lines(logs: Iterable[Path]) -> Iterator[bytes]:
    """All lines of all files, `.gz` unpacked. Raises LogFileError."""
    for log in logs:
        try:
            with gzip.open(log) if log.suffix == ".gz" else log.open("rb") as file:
                yield from file
        except (OSError, EOFError, zlib.error) as error:  # the last two of a .gz that is damaged, or not all there
            raise LogFileError(f"{log}: {getattr(error, 'strerror', None) or error}") from None


def _beside(log: Path) -> list[Path]:
    try:
        return list(log.parent.iterdir())
    except OSError:
        return []  # reading the log itself tells why
