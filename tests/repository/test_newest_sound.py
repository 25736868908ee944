"""The newest version of which every byte is as stored is what a name means; weights are read again only if touched."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.repository import weight_hashes
from shared.repository.errors import BadModelFile, ChecksumMismatch, NoSoundVersion
from shared.repository.inspect import inspect_path
from shared.repository.manifest import hash_file
from shared.repository.store import ModelRepository
from tests.tiny_models import make_tiny_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """Versions 1 and 2 of "tiny"."""
    repository = ModelRepository(tmp_path / "models")
    for seed in (0, 1):
        source = make_tiny_model(tmp_path / f"source-{seed}", "LlamaForCausalLM", seed=seed, num_hidden_layers=1)
        repository.add(inspect_path(source), "tiny")
    return repository


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be remembered as soon as they are written."""
    monkeypatch.setattr(weight_hashes, "SETTLED_NS", 0)


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The weight files that newest_sound has read, in order."""
    files: list[Path] = []

    def reading(file: Path, on_bytes: Callable[[int], None]) -> str:
        files.append(file)
        return hash_file(file, on_bytes)

    monkeypatch.setattr(weight_hashes, "hash_file", reading)
    return files


def flip(file: Path, at: int = -1) -> None:
    """Change one bit in place and set the modification time back."""
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(at, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(at, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def weights(repository: ModelRepository, version: str) -> Path:
    return repository.root / "tiny" / version / WEIGHTS


@pytest.mark.parametrize("damage", ["flipped", "missing", "half-written"])
def test_a_damaged_version_is_passed_over(repository: ModelRepository, damage: str) -> None:
    file = weights(repository, "2")
    if damage == "flipped":
        flip(file)
    elif damage == "missing":
        file.unlink()
    else:
        (file.parent / "manifest.json").unlink()
    passed_over: list[tuple[str, str, BadModelFile]] = []
    model = repository.ensure("tiny", on_passed_over=lambda *told: passed_over.append(told))
    assert model.version == repository.open("tiny").version == "1"
    [(name, version, error)] = passed_over
    assert (name, version) == ("tiny", "2")
    assert error.file == (file.parent if damage == "half-written" else file)


def test_no_sound_version_is_an_error_with_every_reason(repository: ModelRepository) -> None:
    flip(weights(repository, "2"))
    weights(repository, "1").unlink()
    with pytest.raises(NoSoundVersion) as raised:
        repository.ensure("tiny")
    assert f"version 2: {weights(repository, '2')}: its SHA-256 differs" in str(raised.value)
    assert f"version 1: {weights(repository, '1')}: cannot be read" in str(raised.value)


@pytest.mark.usefixtures("settled")
def test_weights_are_read_once(repository: ModelRepository, read_files: list[Path]) -> None:
    for _ in range(3):
        assert repository.ensure("tiny").version == "2"
    assert read_files == [weights(repository, "2")]
    repository.newest_sound("tiny", reread=True)
    assert read_files == [weights(repository, "2")] * 2


@pytest.mark.usefixtures("settled")
def test_a_flip_under_the_same_modification_time_is_found(repository: ModelRepository, read_files: list[Path]) -> None:
    assert repository.ensure("tiny").version == "2"
    flip(weights(repository, "2"))
    assert [repository.ensure("tiny").version for _ in range(2)] == ["1", "1"]
    assert read_files == [weights(repository, "2"), weights(repository, "2"), weights(repository, "1")]
    flip(weights(repository, "2"))
    assert repository.ensure("tiny").version == "2"


@pytest.mark.usefixtures("settled")
def test_another_file_of_the_same_size_and_time_is_read(repository: ModelRepository, read_files: list[Path]) -> None:
    file = weights(repository, "2")
    assert repository.ensure("tiny").version == "2"
    before = file.stat()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert repository.ensure("tiny").version == "2"
    assert read_files == [file, file]


def test_what_was_just_written_is_not_remembered(repository: ModelRepository, read_files: list[Path]) -> None:
    """It could be written again within the same tick of the file system's clock."""
    os.utime(weights(repository, "2"))
    for _ in range(2):
        os.utime(weights(repository, "2"))
        repository.ensure("tiny")
    assert read_files == [weights(repository, "2")] * 2


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model.safetensors":{"stamp":[1],"sha256":"0"}}', b"\xff"])
def test_a_broken_memory_is_no_trust(repository: ModelRepository, read_files: list[Path], content: bytes) -> None:
    memory = repository.root / ".hashes" / "tiny" / "2.json"
    memory.parent.mkdir(parents=True)
    memory.write_bytes(content)
    assert repository.ensure("tiny").version == "2"
    assert read_files == [weights(repository, "2")]
    assert [file.name for file in memory.parent.iterdir()] == ["2.json"]


def test_without_a_place_to_remember_all_is_read(repository: ModelRepository, read_files: list[Path]) -> None:
    (repository.root / ".hashes").write_text("a file where a folder should be")
    assert [repository.ensure("tiny").version for _ in range(2)] == ["2", "2"]
    assert read_files == [weights(repository, "2")] * 2


@pytest.mark.usefixtures("settled")
def test_removing_a_version_forgets_it(repository: ModelRepository) -> None:
    repository.ensure("tiny")
    assert repository.remove("tiny", "2") == ["2"]
    assert list((repository.root / ".hashes" / "tiny").iterdir()) == []


def test_a_version_that_is_named_is_never_exchanged(repository: ModelRepository) -> None:
    flip(weights(repository, "2"))
    with pytest.raises(ChecksumMismatch, match=WEIGHTS):
        repository.open("tiny", "2").verify_weights()
