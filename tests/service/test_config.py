"""Configuration: a typo is an error that names the key, options win over the file, help is complete."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from shared.config import ServiceConfig, load


class Sample(ServiceConfig, kw_only=True, frozen=True):
    """One field of each kind."""

    max_num_seqs: Annotated[int, msgspec.Meta(description="sequences in one step", ge=1)] = 64
    max_model_len: Annotated[int | None, msgspec.Meta(description="longest sequence")] = None
    share: Annotated[float, msgspec.Meta(description="100% is all", gt=0, le=1)] = 0.9
    engine: Annotated[Literal["cpu", "fake"], msgspec.Meta(description="what computes")] = "cpu"
    enable_prefix_caching: Annotated[bool, msgspec.Meta(description="reuse blocks")] = True
    models: Annotated[list[str], msgspec.Meta(description="names")] = msgspec.field(default_factory=list)


def read(*argv: str) -> Sample:
    return load(Sample, list(argv), "sample")


def error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        read(*argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_defaults() -> None:
    assert read() == Sample()


def test_options_of_every_kind() -> None:
    config = read(
        *("--max-num-seqs", "8", "--max-model-len", "100", "--share", "0.5", "--engine", "fake"),
        *("--no-enable-prefix-caching", "--models", "a", "--models", "b.c", "--nats", "nats://h:1"),
    )
    assert (config.max_num_seqs, config.max_model_len, config.share, config.engine) == (8, 100, 0.5, "fake")
    assert (config.enable_prefix_caching, config.models, config.nats) == (False, ["a", "b.c"], "nats://h:1")


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('max_num_seqs = 3\nshare = 1\nmodels = ["x"]\nenable_prefix_caching = false\n')
    config = read("--config", str(path), "--max-num-seqs", "4")
    assert (config.max_num_seqs, config.share, config.models, config.enable_prefix_caching) == (4, 1.0, ["x"], False)


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--max-num-seqs", "many"], "--max-num-seqs"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--max-num-seqs", "1.5"], "--max-num-seqs"),
        (["--max-num-seqs"], "--max-num-seqs"),
        (["--share", "1.1"], "--share"),
        (["--engine", "gpu"], "--engine: 'gpu' is not accepted: expected one of cpu, fake"),
        (["--max-num-seq", "3"], "--max-num-seq"),
        (["--health-port", "65536"], "--health-port"),
        (["stray"], "stray"),
    ],
)
def test_bad_option_is_named(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word in error(capsys, *argv)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_num_seq = 3", ["max_num_seq", "did you mean max_num_seqs"]),
        ('max_num_seqs = "3"', ["max_num_seqs", "int"]),
        ("max_num_seqs = 0", ["max_num_seqs", ">= 1"]),
        ('[engine]\nx = "cpu"', ["engine"]),
        ("max_num_seqs = ", ["s.toml"]),
        ("models = [1]", ["models"]),
    ],
)
def test_bad_file_is_named(text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    message = error(capsys, "--config", str(path))
    assert all(word in message for word in words), message


def test_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/such.toml" in error(capsys, "--config", "/no/such.toml")


class Needy(msgspec.Struct, kw_only=True):
    """A field without a default."""

    data_dir: Annotated[str, msgspec.Meta(description="folder")]


def test_an_option_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(Needy, [], "needy")
    assert capsys.readouterr().err == "needy: --data-dir must be given\n"


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for field in msgspec.structs.fields(Sample):
        assert "--" + field.name.replace("_", "-") in text
    assert "sequences in one step (default: 64)" in text
    assert "100% is all (default: 0.9)" in text
