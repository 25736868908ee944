"""Versions appear whole, never change, and a damaged one does not stop an older one from serving."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, processors

from shared.repository.errors import BadModelFile, ChecksumMismatch, ModelError, ModelNotFound
from shared.repository.inspect import default_name, inspect_path
from shared.repository.store import ModelRepository, default_root
from shared.repository.weights import iter_weights
from tests.stored_models import store_tiny_model
from tests.tiny_models import ARCHITECTURES, CHAT_TEMPLATE, make_tiny_model


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    """A repository with version 1 of "tiny"; its source lies in tmp_path / "source"."""
    repository = ModelRepository(tmp_path / "models")
    make_tiny_model(tmp_path / "source", "LlamaForCausalLM", num_hidden_layers=1)
    repository.add(inspect_path(tmp_path / "source"), "tiny")
    return repository


def add_second(tmp_path: Path, repository: ModelRepository) -> Path:
    make_tiny_model(tmp_path / "second", "LlamaForCausalLM", seed=1, num_hidden_layers=1)
    return repository.add(inspect_path(tmp_path / "second"), "tiny").path


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_of_a_folder_come_back_exactly(tmp_path: Path, architecture: str) -> None:
    model = store_tiny_model(tmp_path, architecture)
    original = load_file(tmp_path / "sources" / "tiny" / "model.safetensors")
    weights = dict(iter_weights(model))
    assert weights.keys() == original.keys() == model.config.parameter_shapes().keys()
    assert all(torch.equal(weights[name], original[name]) for name in original)


def test_shards_and_tied_weights(tmp_path: Path) -> None:
    whole = make_tiny_model(tmp_path / "whole", "Qwen2ForCausalLM")
    model = store_tiny_model(tmp_path, "Qwen2ForCausalLM", max_shard_size="100KB")
    assert len(model.weight_files) > 2
    assert model.config.tie_word_embeddings
    original = load_file(whole / "model.safetensors")
    weights = dict(iter_weights(model))
    assert "lm_head.weight" not in weights
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name], original[name]) for name in original)


def test_what_a_service_reads(tmp_path: Path, repository: ModelRepository) -> None:
    model = repository.open("tiny")
    assert (model.name, model.version) == ("tiny", "1")
    assert model.path == tmp_path / "models" / "tiny" / "1"
    assert model.eos_token_ids == (2, 0)
    assert (model.bos_token, model.bos_token_id, model.eos_token) == ("<|endoftext|>", 0, "<|im_end|>")
    assert model.chat_template == CHAT_TEMPLATE
    assert model.generation_defaults == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert not model.add_bos_token
    assert model.tokenizer_file.is_file()


@pytest.mark.parametrize("with_bos", [False, True])
def test_add_bos_token_is_what_the_tokenizer_does(tmp_path: Path, with_bos: bool) -> None:
    """tokenizer_config.json may say anything; what counts is whether encoding puts BOS first."""
    folder = make_tiny_model(tmp_path / "source", "LlamaForCausalLM", num_hidden_layers=1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if with_bos:
        bos = ("<|endoftext|>", 0)
        tokenizer.post_processor = processors.TemplateProcessing(single=[bos[0], "$A"], special_tokens=[bos])
        tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": not with_bos}))
    model = ModelRepository(tmp_path / "models").add(inspect_path(folder), "tiny")
    stored = Tokenizer.from_file(str(model.tokenizer_file))
    assert model.add_bos_token == with_bos
    assert stored.encode("Paris").ids.count(0) == int(with_bos)
    assert stored.encode("Paris", add_special_tokens=False).ids.count(0) == 0


def test_source_files_and_sums_are_kept(tmp_path: Path, repository: ModelRepository) -> None:
    model = repository.open("tiny")
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ):
        assert (model.path / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    digest = hashlib.sha256((model.path / "model.safetensors").read_bytes()).hexdigest()
    assert model.manifest.files["model.safetensors"].sha256 == digest
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=model.path, check=True)
    stored = {file.name for file in model.path.iterdir()}
    assert stored == {*model.manifest.files, "manifest.json", "SHA256SUMS"}


def test_the_newest_version_is_what_a_name_means(tmp_path: Path, repository: ModelRepository) -> None:
    add_second(tmp_path, repository)
    assert repository.versions("tiny") == ["1", "2"]
    assert repository.open("tiny").version == "2"
    assert repository.open("tiny", "1").version == "1"
    chosen = repository.add(inspect_path(tmp_path / "source"), "tiny", "10")
    assert (chosen.version, repository.open("tiny").version) == ("10", "10")
    assert repository.versions("tiny") == ["1", "2", "10"]


def test_adding_the_same_again_opens_it(tmp_path: Path, repository: ModelRepository) -> None:
    assert repository.add(inspect_path(tmp_path / "source"), "tiny").version == "1"
    add_second(tmp_path, repository)
    assert repository.add(inspect_path(tmp_path / "source"), "tiny").version == "3"


def test_versions_never_change(tmp_path: Path, repository: ModelRepository) -> None:
    before = (repository.open("tiny").path / "SHA256SUMS").read_bytes()
    make_tiny_model(tmp_path / "second", "LlamaForCausalLM", seed=1, num_hidden_layers=1)
    with pytest.raises(ModelError, match="already has a version 1"):
        repository.add(inspect_path(tmp_path / "second"), "tiny", "1")
    assert (repository.open("tiny").path / "SHA256SUMS").read_bytes() == before


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "-x", "x" * 97, "a\0b", "a b"])
def test_bad_names(tmp_path: Path, repository: ModelRepository, name: str) -> None:
    with pytest.raises(ModelError, match="bad model name"):
        repository.add(inspect_path(tmp_path / "source"), name)
    with pytest.raises(ModelNotFound):
        repository.open(name)


@pytest.mark.parametrize("version", ["0", "-1", "v2", "1.0", "../1", "01", ""])
def test_bad_versions(tmp_path: Path, repository: ModelRepository, version: str) -> None:
    with pytest.raises(ModelError, match="bad version"):
        repository.add(inspect_path(tmp_path / "source"), "tiny", version)
    with pytest.raises(ModelNotFound):
        repository.open("tiny", version)


def test_unknown_models_are_named_with_those_that_are_there(tmp_path: Path, repository: ModelRepository) -> None:
    with pytest.raises(ModelNotFound, match="models there: tiny"):
        repository.open("large")
    with pytest.raises(ModelNotFound, match="versions: 1"):
        repository.open("tiny", "7")
    with pytest.raises(ModelNotFound):
        repository.ensure("large")
    with pytest.raises(ModelNotFound, match="models there: none"):
        ModelRepository(tmp_path / "nowhere").open("tiny")


def test_a_half_written_version_is_never_opened(tmp_path: Path, repository: ModelRepository) -> None:
    second = add_second(tmp_path, repository)
    for name in ("SHA256SUMS", "manifest.json"):
        (second / name).unlink()
        with pytest.raises(BadModelFile, match="half-written version"):
            repository.open("tiny", "2")
        assert repository.open("tiny").version == "1"
    assert add_second(tmp_path, repository).name == "3"


def test_a_changed_small_file_is_refused_and_the_old_version_serves(
    tmp_path: Path, repository: ModelRepository
) -> None:
    second = add_second(tmp_path, repository)
    file = second / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b"Paris", b"Pxris").replace(b"a", b"b", 1))
    with pytest.raises(ChecksumMismatch, match=str(file)):
        repository.open("tiny", "2")
    assert repository.open("tiny").version == "1"


def test_a_changed_manifest_is_refused(tmp_path: Path, repository: ModelRepository) -> None:
    second = add_second(tmp_path, repository)
    manifest = second / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"temperature": 0.6', b'"temperature": 0.7'))
    with pytest.raises(ChecksumMismatch, match="SHA256SUMS"):
        repository.open("tiny", "2")


def test_a_changed_weight_is_refused_before_the_first_tensor(tmp_path: Path, repository: ModelRepository) -> None:
    second = add_second(tmp_path, repository)
    file = second / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    model = repository.open("tiny", "2")
    with pytest.raises(ChecksumMismatch, match=str(file)):
        iter_weights(model)
    with pytest.raises(ChecksumMismatch, match=str(file)):
        model.verify()
    assert dict(iter_weights(repository.open("tiny", "1")))
    assert add_second(tmp_path, repository).name == "3"


def test_a_truncated_weight_file_is_refused_at_once(tmp_path: Path, repository: ModelRepository) -> None:
    second = add_second(tmp_path, repository)
    file = second / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ChecksumMismatch, match="bytes"):
        repository.open("tiny", "2")


def test_a_missing_file_is_refused(tmp_path: Path, repository: ModelRepository) -> None:
    second = add_second(tmp_path, repository)
    (second / "model.safetensors").unlink()
    with pytest.raises(BadModelFile, match=r"model\.safetensors"):
        repository.open("tiny", "2")


def test_a_version_in_the_wrong_folder_is_refused(tmp_path: Path, repository: ModelRepository) -> None:
    add_second(tmp_path, repository).rename(tmp_path / "models" / "tiny" / "5")
    with pytest.raises(BadModelFile, match="holds tiny version 2"):
        repository.open("tiny", "5")


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path, repository: ModelRepository) -> None:
    leftover = tmp_path / "models" / ".staging" / "left"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    add_second(tmp_path, repository)
    assert not leftover.exists()
    assert repository.names() == ["tiny"]


def test_a_failed_add_leaves_nothing(tmp_path: Path, repository: ModelRepository) -> None:
    source = inspect_path(make_tiny_model(tmp_path / "second", "LlamaForCausalLM", seed=1))
    file = tmp_path / "second" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(BadModelFile, match="truncated"):
        repository.add(source, "other")
    assert repository.names() == ["tiny"]
    assert not (tmp_path / "models" / ".staging").exists()
    assert not (tmp_path / "models" / "other").exists()


def test_remove(tmp_path: Path, repository: ModelRepository) -> None:
    add_second(tmp_path, repository)
    assert repository.remove("tiny", "1") == ["1"]
    assert repository.versions("tiny") == ["2"]
    opened = iter_weights(repository.open("tiny"))
    first = next(opened)
    assert repository.remove("tiny") == ["2"]
    assert repository.names() == []
    assert not (tmp_path / "models" / "tiny").exists()
    assert len([first, *opened]) > 1
    with pytest.raises(ModelNotFound):
        repository.remove("tiny")


def test_adding_at_the_same_time(tmp_path: Path, repository: ModelRepository) -> None:
    command = [sys.executable, "-m", "deploy.cli.main", "model", "add", "--name", "tiny"]
    command += ["--model-repository", str(repository.root)]
    processes = [
        subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for folder in (
            make_tiny_model(tmp_path / f"source-{seed}", "LlamaForCausalLM", seed=seed, num_hidden_layers=1)
            for seed in (1, 2, 3)
        )
    ]
    told = [process.communicate()[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(text.split(" (")[0] for text in told) == [f"Added tiny version {number}" for number in (2, 3, 4)]
    assert repository.versions("tiny") == ["1", "2", "3", "4"]
    for version in repository.versions("tiny"):
        repository.open("tiny", version).verify()


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_root() == tmp_path / "tokenbus" / "models"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local" / "share" / "tokenbus" / "models"


@pytest.mark.parametrize(
    ("path", "name"),
    [("Qwen2.5-0.5B/", "qwen2.5-0.5b"), ("x/SmolLM2.Q4_1.GGUF", "smollm2.q4_1"), ("my model", "my-model")],
)
def test_default_names(path: str, name: str) -> None:
    assert default_name(Path(path)) == name
