"""Reading JSON files that nobody has checked yet."""

from pathlib import Path
from typing import Any

import msgspec

from shared.repository.errors import BadModelFile

MAX_JSON_BYTES = 64 * 1024 * 1024


def read_bounded(file: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file of at most max_bytes. Raises BadModelFile when it is missing, too long or unreadable."""
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise BadModelFile(file, "the file is missing") from None
    except OSError as error:
        raise BadModelFile(file, f"cannot be read ({error.strerror})") from error
    if len(data) > max_bytes:
        raise BadModelFile(file, f"longer than {max_bytes} bytes")
    return data


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises BadModelFile for anything else."""
    data = read_bounded(file)
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except RecursionError:
        raise BadModelFile(file, "JSON nested too deeply") from None
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadModelFile(file, f"not a JSON object ({error})") from error
