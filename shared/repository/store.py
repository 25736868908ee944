"""The model repository: `<root>/<name>/<version>/`, each version written once and never changed.

A version is built in `<root>/.staging/` and renamed into place when it is whole and flushed to the disk, so a folder
without its manifest was never finished and is never opened. Versions are counted 1, 2, 3, ...; the newest sound one is
what a name means, to every process alike. Adding and removing hold a lock on the repository; reading needs none.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import structlog

from shared.repository.errors import BadModelFile, ModelError, ModelNotFound, NoSoundVersion
from shared.repository.gguf_source import inspect_gguf
from shared.repository.known import KNOWN_MODELS, fetch
from shared.repository.manifest import FileEntry, Manifest, hash_file, sync_file, write_durably, write_manifest
from shared.repository.progress import ByteCounter, Progress, no_progress
from shared.repository.source import ModelSource
from shared.repository.stored_model import StoredModel
from shared.repository.weight_check import check_weights
from shared.repository.weight_hashes import check_weights_once

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_STAGING, _LOCK = ".staging", ".lock"
_DOWNLOADS, _DOWNLOAD_LOCK = ".downloads", ".download-lock"
_HASHES = ".hashes"

OnPassedOver = Callable[[str, str, BadModelFile], None]
"""Called with name, version and error for a version that is not sound when an older one is tried instead."""


def log_passed_over(name: str, version: str, error: BadModelFile) -> None:
    """An OnPassedOver that logs a warning."""
    structlog.get_logger().warning("model version passed over", model=name, version=version, reason=str(error))


def default_root() -> Path:
    """`$XDG_DATA_HOME/tokenbus/models`, with ~/.local/share where the variable is not set."""
    data_home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data_home) if data_home.startswith("/") else Path.home() / ".local" / "share"
    return base / "tokenbus" / "models"


class ModelRepository:
    """Stored models under one folder. root: None for default_root()."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root

    def names(self) -> list[str]:
        """Names with at least one version, sound or not, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(entry.name for entry in self.root.iterdir() if _NAME.fullmatch(entry.name) and _versions(entry))

    def versions(self, name: str) -> list[str]:
        """Versions of a name, sound or not, oldest first; empty for an unknown name."""
        return _versions(self.root / name) if _NAME.fullmatch(name) else []

    def open(self, name: str, version: str | None = None) -> StoredModel:
        """Open a version; None means newest_sound.

        Checked of a version that is named: the manifest, the size of every file and the SHA-256 of all but the weights,
        which iter_weights and verify check. Raises ModelNotFound, BadModelFile or ChecksumMismatch, and what
        newest_sound raises.
        """
        if version is None:
            return self.newest_sound(name)
        found = self._found(name)
        if version not in found:
            raise ModelNotFound(f"model {name} has no version {version[:20]!r}; versions: {', '.join(found)}")
        return StoredModel.open(self.root / name / version)

    def newest_sound(
        self,
        name: str,
        progress: Progress = no_progress,
        *,
        reread: bool = False,
        on_passed_over: OnPassedOver = log_passed_over,
    ) -> StoredModel:
        """The newest version of which every file, weights too, has the SHA-256 that was stored.

        reread: also read weights that nothing has touched since they were read last. Raises ModelNotFound for an
        unknown name, NoSoundVersion.
        """
        errors: list[str] = []
        for version in reversed(self._found(name)):
            try:
                model = StoredModel.open(self.root / name / version)
                check_weights_once(model, self._hashes(name, version), progress, reread=reread)
            except BadModelFile as error:
                on_passed_over(name, version, error)
                errors.append(f"version {version}: {error}")
            else:
                return model
        raise NoSoundVersion(f"model {name} has no sound version; {'; '.join(errors)}")

    def ensure(
        self,
        name: str,
        progress: Progress = no_progress,
        *,
        reread: bool = False,
        on_passed_over: OnPassedOver = log_passed_over,
    ) -> StoredModel:
        """newest_sound, after adding the model when it is a known one that is not there yet.

        Raises ModelNotFound for a name that is neither here nor known, and what adding and opening raise.
        """
        if self.versions(name) or name not in KNOWN_MODELS:
            return self.newest_sound(name, progress, reread=reread, on_passed_over=on_passed_over)
        return self.add_known(name, progress=progress)

    def _found(self, name: str) -> list[str]:
        """versions, at least one. Raises ModelNotFound."""
        found = self.versions(name)
        if not found:
            known = ", ".join(self.names()) or "none"
            raise ModelNotFound(f"no model {name[:80]!r} in {self.root}; models there: {known}")
        return found

    def _hashes(self, name: str, version: str) -> Path:
        """Where it is remembered what the version's weights were found to hold."""
        return self.root / _HASHES / name / f"{version}.json"

    def check_new(self, name: str, version: str | None) -> None:
        """Raises ModelError for a bad name, and for a bad version or one that exists."""
        check_name(name)
        if version is None:
            return
        check_version(version)
        if version in self.versions(name):
            raise ModelError(f"model {name} already has a version {version}; versions never change")

    def add_known(
        self, known: str, name: str | None = None, version: str | None = None, progress: Progress = no_progress
    ) -> StoredModel:
        """Fetch a model of KNOWN_MODELS and add it, under its own name unless another is given.

        Processes that ask at the same time wait for the first one's download. Raises ModelNotFound for an unknown one,
        ModelError when it cannot be fetched, and what add raises, if it can before anything is fetched.
        """
        if known not in KNOWN_MODELS:
            raise ModelNotFound(f"unknown model {known[:80]!r}; known models: {', '.join(sorted(KNOWN_MODELS))}")
        model, name = KNOWN_MODELS[known], name or known
        self.check_new(name, version)
        with self._locked(_DOWNLOAD_LOCK):
            existing = self.versions(name)
            if version is None and existing:
                stored = self._sound(name, existing[-1])
                if stored is not None and stored.manifest.source == model.description:
                    return stored
            with self._temporary_folder(_DOWNLOADS) as folder:
                source = inspect_gguf(fetch(model, folder, progress), model.description)
                return self.add(source, name, version, progress)

    def _sound(self, name: str, version: str) -> StoredModel | None:
        """The version when each of its files is what its manifest says, else None."""
        try:
            model = StoredModel.open(self.root / name / version)
            model.verify()
        except BadModelFile:
            return None
        return model

    def add(
        self, source: ModelSource, name: str, version: str | None = None, progress: Progress = no_progress
    ) -> StoredModel:
        """Copy a checked source in as a new version (None: one more than the newest) and open it.

        When the newest version holds the same files, it is opened instead. Raises ModelError for a bad name, a bad
        version or one that exists; BadModelFile when the copy differs from what was checked. Nothing half remains.
        """
        self.check_new(name, version)
        with self._locked():
            self.check_new(name, version)  # somebody else may have been faster
            existing = self.versions(name)
            with self._temporary_folder() as staged:
                files = _copy_files(source, staged, f"add {name}", progress)
                check_weights(source.weight_format, [staged / item for item in source.weight_files], source.config)
                if version is None and existing:
                    twin = self._sound(name, existing[-1])
                    if twin is not None and twin.manifest.files == files:
                        return twin
                chosen = version or str(int(existing[-1]) + 1 if existing else 1)
                write_manifest(staged, _manifest(source, name, chosen, files))
                sync_file(staged)
                self._move_in(staged, name, chosen)
        return self.open(name, chosen)

    def remove(self, name: str, version: str | None = None) -> list[str]:
        """Remove one version, or all of them; returns those removed. Processes that have them open go on with them.

        Raises ModelNotFound.
        """
        with self._locked():
            found = self.versions(name)
            doomed = found if version is None else [item for item in found if item == version]
            if not doomed:
                raise ModelNotFound(f"no model {name[:80]!r}" + (f" version {version[:20]!r}" if version else ""))
            with self._temporary_folder() as staged:
                for item in doomed:
                    (self.root / name / item).rename(staged / item)
                    sync_file(self.root / name)
                    self._hashes(name, item).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other versions, or files of somebody else, are still in it
                (self.root / name).rmdir()
        return doomed

    def _move_in(self, staged: Path, name: str, version: str) -> None:
        parent = self.root / name
        parent.mkdir(exist_ok=True)
        staged.rename(parent / version)
        sync_file(parent)
        sync_file(self.root)

    @contextlib.contextmanager
    def _locked(self, lock: str = _LOCK) -> Iterator[None]:
        """A lock of the repository, held by one process at a time; waits for it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / lock).open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _temporary_folder(self, area_name: str = _STAGING) -> Iterator[Path]:
        """A new folder on the repository's own file system, gone afterwards unless it was renamed.

        The area's lock must be held: whatever else lies there is what a killed process left, and is removed.
        """
        area = self.root / area_name
        shutil.rmtree(area, ignore_errors=True)
        area.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=area))
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            shutil.rmtree(area, ignore_errors=True)


def check_name(name: str) -> None:
    """Raises ModelError for a name that cannot be a folder here."""
    if not _NAME.fullmatch(name):
        raise ModelError(f"bad model name {name[:80]!r}: letters, digits, '.', '_' and '-', at most 96 of them")


def check_version(version: str) -> None:
    """Raises ModelError for anything but a positive integer."""
    if not _VERSION.fullmatch(version):
        raise ModelError(f"bad version {version[:20]!r}: a positive integer is needed")


def _versions(folder: Path) -> list[str]:
    try:
        names = [entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names, key=int)


def _manifest(source: ModelSource, name: str, version: str, files: dict[str, FileEntry]) -> Manifest:
    return Manifest(
        name=name,
        version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=source.description,
        weight_format=source.weight_format,
        weight_files=source.weight_files,
        config=source.config,
        bos_token=source.bos_token,
        bos_token_id=source.bos_token_id,
        eos_token=source.eos_token,
        eos_token_ids=source.eos_token_ids,
        add_bos_token=source.add_bos_token,
        generation_defaults=source.generation_defaults,
        files=files,
    )


def _copy_files(source: ModelSource, staged: Path, stage: str, progress: Progress) -> dict[str, FileEntry]:
    """Copy and write everything into staged, flushed to the disk; returns the entries of the copies."""
    counter = ByteCounter(stage, 2 * sum(file.stat().st_size for file in source.files.values()), progress)
    for name, file in source.files.items():
        with file.open("rb") as reader, (staged / name).open("xb") as writer:
            while chunk := reader.read(1 << 20):
                writer.write(chunk)
                counter.advance(len(chunk))
            writer.flush()
            os.fsync(writer.fileno())
    for name, text in source.texts.items():
        write_durably(staged / name, text.encode())
    entries = {}
    for name in sorted((*source.files, *source.texts)):
        sha256 = hash_file(staged / name, counter.advance if name in source.files else None)
        entries[name] = FileEntry((staged / name).stat().st_size, sha256)
    return entries
