"""`tokenbus model`: what a person types and sees."""

from pathlib import Path

import pytest

from deploy.cli.model import main
from tests.tiny_models import make_tiny_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "Tiny Model", "Qwen3ForCausalLM", num_hidden_layers=1)


def run(tmp_path: Path, *words: str) -> int:
    return main([*words, "--model-repository", str(tmp_path / "models")])


def test_a_models_life(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "list") == 0
    assert "No models" in capsys.readouterr().out
    assert run(tmp_path, "add", str(source)) == 0
    assert "Added tiny-model version 1" in capsys.readouterr().out
    assert run(tmp_path, "add", str(source)) == 0
    assert "Already there: tiny-model version 1" in capsys.readouterr().out
    assert run(tmp_path, "add", str(source), "--name", "other", "--version", "7") == 0
    capsys.readouterr()
    assert run(tmp_path, "list") == 0
    listed = capsys.readouterr().out
    assert "tiny-model" in listed
    assert "Qwen3ForCausalLM" in listed
    assert "ready" in listed
    assert run(tmp_path, "show", "tiny-model") == 0
    shown = capsys.readouterr().out
    for text in ("rope_theta", "safetensors", "eos_token_ids", "2, 0", "model.safetensors"):
        assert text in shown
    assert run(tmp_path, "verify") == 0
    assert "tiny-model version 1: 6 files" in capsys.readouterr().out
    assert run(tmp_path, "export", "other", str(tmp_path / "exported")) == 0
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    assert run(tmp_path, "remove", "other", "--version", "7") == 0
    assert "Removed other version 7" in capsys.readouterr().out
    assert run(tmp_path, "remove", "tiny-model") == 0
    assert run(tmp_path, "show", "tiny-model") == 1


def test_damage_is_told(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "add", str(source), "--name", "tiny")
    file = tmp_path / "models" / "tiny" / "1" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"oops")
    capsys.readouterr()
    assert run(tmp_path, "verify", "tiny") == 1
    assert f"{file}: its SHA-256 differs" in capsys.readouterr().err
    file.unlink()
    assert run(tmp_path, "list") == 0
    assert "damaged" in capsys.readouterr().out
    assert run(tmp_path, "show", "tiny") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--version", "zero"], "bad version"),
        (["--name", "a/b"], "bad model name"),
        (["--name", "tiny", "--version", "1"], "already has a version 1"),
    ],
)
def test_nothing_is_downloaded_for_what_could_not_be_stored(
    tmp_path: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    reason: str,
) -> None:
    def fetch(*_: object) -> Path:
        raise AssertionError("downloaded")

    monkeypatch.setattr("shared.repository.store.fetch", fetch)
    run(tmp_path, "add", str(source), "--name", "tiny")
    assert run(tmp_path, "add", "smollm2-135m", *options) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["add", "no-such-model"], "known models: smollm2-135m"),
        (["add", "{source}", "--name", "../x"], "bad model name"),
        (["add", "{source}", "--version", "zero"], "bad version"),
        (["add", "{source}/config.json"], "neither a model folder nor a GGUF file"),
        (["show", "absent"], "no model 'absent'"),
        (["verify", "absent"], "no model 'absent'"),
        (["remove", "absent"], "no model 'absent'"),
        (["export", "absent", "{source}"], "no model 'absent'"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert run(tmp_path, *(word.replace("{source}", str(source)) for word in words)) == 1
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if line.startswith("tokenbus model: ")]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "Traceback" not in told.err
    assert told.out == ""


def test_a_repository_that_cannot_be_made(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").write_text("a file")
    assert run(tmp_path, "add", str(source), "--name", "tiny") == 1
    assert f"tokenbus model: {tmp_path / 'models'}" in capsys.readouterr().err
