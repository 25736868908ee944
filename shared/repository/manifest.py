"""What a stored version holds: manifest.json, and SHA256SUMS over all its files (`sha256sum -c` reads it too)."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from shared.repository.config import ModelConfig
from shared.repository.errors import BadModelFile, ChecksumMismatch
from shared.repository.json_file import read_bounded

MANIFEST_FILE = "manifest.json"
SUMS_FILE = "SHA256SUMS"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
FORMAT = 1
CHUNK_BYTES = 1 << 20

_SAFE_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")

OnBytes = Callable[[int], None]
"""Called with the number of bytes just read."""


class FileEntry(msgspec.Struct, frozen=True):
    """A file of the version as it must be."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a service needs to know of a stored version, without reading its weights.

    source: what it was made from, for people. weight_format: "safetensors" or "gguf". weight_files: names inside the
    version's folder. bos_token, eos_token: their texts, as chat templates write them. eos_token_ids: every id that ends
    a sequence. add_bos_token: whether tokenizer.json puts BOS before a text encoded with special tokens.
    generation_defaults: sampling parameters of the model's authors, under vLLM's names. files: all files but this one
    and SHA256SUMS. created: UTC, ISO 8601.
    """

    format: int = FORMAT
    name: str
    version: str
    created: str
    source: str
    weight_format: str
    weight_files: tuple[str, ...]
    config: ModelConfig
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    add_bos_token: bool
    generation_defaults: dict[str, int | float]
    files: dict[str, FileEntry]


def is_safe_file_name(name: str) -> bool:
    """Whether a name of a model's file stays inside its folder and reads well in SHA256SUMS."""
    return _SAFE_FILE_NAME.fullmatch(name) is not None


def hash_file(file: Path, on_bytes: OnBytes | None = None) -> str:
    """SHA-256 of a file in hexadecimal. Raises BadModelFile when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                if on_bytes is not None:
                    on_bytes(len(chunk))
    except OSError as error:
        raise BadModelFile(file, f"cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json and SHA256SUMS and flush both to the disk."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    write_durably(folder / MANIFEST_FILE, data)
    sums = {name: entry.sha256 for name, entry in manifest.files.items()}
    sums[MANIFEST_FILE] = hashlib.sha256(data).hexdigest()
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())]
    write_durably(folder / SUMS_FILE, "".join(lines).encode())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a version's folder, checked against SHA256SUMS.

    Raises BadModelFile for a folder that was written by half or holds no manifest of this format, ChecksumMismatch when
    the manifest is not the one that was summed.
    """
    for name in (MANIFEST_FILE, SUMS_FILE):
        if not (folder / name).is_file():
            raise BadModelFile(folder, f"half-written version: {name} is missing")
    data = read_bounded(folder / MANIFEST_FILE)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise BadModelFile(folder / MANIFEST_FILE, f"not a manifest ({error})") from error
    if manifest.format != FORMAT:
        raise BadModelFile(folder / MANIFEST_FILE, f"format {manifest.format} is not known to this release")
    unsafe = [name for name in (*manifest.files, *manifest.weight_files) if not is_safe_file_name(name)]
    if unsafe or not set(manifest.weight_files) <= set(manifest.files):
        raise BadModelFile(folder / MANIFEST_FILE, "lists files that cannot be in this folder")
    expected = {name: entry.sha256 for name, entry in manifest.files.items()}
    expected[MANIFEST_FILE] = hashlib.sha256(data).hexdigest()
    if _read_sums(folder / SUMS_FILE) != expected:
        raise ChecksumMismatch(folder / SUMS_FILE, f"the checksums differ from those in {MANIFEST_FILE}")
    return manifest


def check_size(folder: Path, name: str, entry: FileEntry) -> None:
    """Raises BadModelFile when the file is missing, ChecksumMismatch when its size differs."""
    file = folder / name
    try:
        size_bytes = file.stat().st_size
    except OSError as error:
        raise BadModelFile(file, f"cannot be read ({error.strerror})") from error
    if size_bytes != entry.size_bytes:
        raise ChecksumMismatch(file, f"has {size_bytes} bytes, {entry.size_bytes} were stored")


def check_file(folder: Path, name: str, entry: FileEntry, on_bytes: OnBytes | None = None) -> None:
    """check_size, and the SHA-256 over the whole file."""
    check_size(folder, name, entry)
    if hash_file(folder / name, on_bytes) != entry.sha256:
        raise ChecksumMismatch(folder / name, "its SHA-256 differs from the stored one")


def write_durably(file: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk."""
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync_file(file: Path) -> None:
    """Flush a file's bytes, or a folder's entries (creations, renames), to the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_sums(file: Path) -> dict[str, str]:
    """Name -> SHA-256 of a SHA256SUMS file; a line of another form becomes an entry that matches nothing."""
    lines = read_bounded(file).decode(errors="replace").splitlines()
    pairs = [line.partition("  ") for line in lines]
    return {name: sha256 for sha256, _, name in pairs}
