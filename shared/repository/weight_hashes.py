"""What a version's weight files were found to hold, remembered so that not every start reads them whole.

A file's SHA-256 is kept with the stamp that the file had: size, times, inode and device. Whatever of them differs, the
file is read again. The change time is what makes this safe: unlike the modification time nobody can set it back. What
no stamp shows, a disk that forgets a bit, is found when the weights are loaded, and by whoever asks to read them again.
"""

import os
import tempfile
import time
from pathlib import Path

import msgspec
import structlog

from shared.repository.errors import BadModelFile, ChecksumMismatch
from shared.repository.manifest import hash_file
from shared.repository.progress import ByteCounter, Progress
from shared.repository.stored_model import StoredModel

# File systems tell time in ticks, network ones by another clock: what was written a moment ago may be written again
# under the same stamp.
SETTLED_NS = 2_000_000_000


class _Seen(msgspec.Struct, frozen=True):
    """A weight file as it was read."""

    stamp: tuple[int, ...]
    sha256: str


def check_weights_once(model: StoredModel, memory: Path, progress: Progress, *, reread: bool) -> None:
    """Compare the SHA-256 of each weight file, reading only files that changed since they were read last.

    memory: the file that remembers; it need not exist. reread: read all, and remember that. Raises BadModelFile or
    ChecksumMismatch naming the first bad file.
    """
    known = _recall(memory)
    stamps = {name: _stamp(model.path / name) for name in model.manifest.weight_files}
    unread = [name for name, stamp in stamps.items() if reread or name not in known or known[name].stamp != stamp]
    num_bytes = sum(model.manifest.files[name].size_bytes for name in unread)
    counter = ByteCounter(f"verify {model.name} version {model.version}", num_bytes, progress)
    seen = {name: known[name] for name in stamps if name not in unread}
    try:
        for name, stamp in stamps.items():
            file = model.path / name
            is_settled = time.time_ns() - max(stamp[1:3]) > SETTLED_NS
            sha256 = seen[name].sha256 if name in seen else hash_file(file, counter.advance)
            if is_settled and _stamp(file) == stamp:
                seen[name] = _Seen(stamp, sha256)
            if sha256 != model.manifest.files[name].sha256:
                raise ChecksumMismatch(file, "its SHA-256 differs from the stored one")
    finally:
        if seen != known:
            _remember(memory, seen)


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError as error:
        raise BadModelFile(file, f"cannot be read ({error.strerror})") from error
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


def _recall(memory: Path) -> dict[str, _Seen]:
    """Nothing, where the file is missing or was written by half: then all is read again."""
    try:
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, _Seen])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _remember(memory: Path, seen: dict[str, _Seen]) -> None:
    """Replace the file as a whole: several services may do so at once."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=memory.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(seen))
        Path(name).replace(memory)
    except OSError as error:  # such as a repository that is read-only
        reason = error.strerror or str(error)
        structlog.get_logger().info("what weights hold cannot be remembered", file=str(memory), reason=reason)
