"""The model-file rows of the bad inputs: refused with the file and the reason, nothing half, the old version serves."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.repository.errors import BadModelFile
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from tests.repository.gguf_files import write_gguf
from tests.tiny_models import make_tiny_model

Damage = Callable[[Path], None]


def change_json(name: str, **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**document, **changes}))

    return damage


def write(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data) and None


def delete(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def change_header(change: Callable[[dict[str, Any]], None]) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        data = file.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return damage


def overlap(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["data_offsets"] = header["model.layers.0.input_layernorm.weight"]["data_offsets"]


def overflow(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["shape"] = [1 << 32, 1 << 32]


def header_length(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 60) + file.read_bytes()[8:])


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled_only(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / name)

    return damage


def escaping_index(folder: Path) -> None:
    names = {"model.norm.weight": "../model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def pickled_index(folder: Path) -> None:
    names = {"model.norm.weight": "pytorch_model.bin"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        pytest.param(header_length, "model.safetensors", "header length", id="safetensors header length"),
        pytest.param(change_header(overlap), "model.safetensors", "overlaps", id="safetensors overlapping offsets"),
        pytest.param(change_header(overflow), "model.safetensors", "overflows", id="safetensors product overflow"),
        pytest.param(truncate, "model.safetensors", "truncated", id="safetensors truncated tail"),
        pytest.param(delete("model.safetensors"), "", "model.safetensors", id="no weights"),
        pytest.param(write("tokenizer.json", b'{"hello": 1}'), "tokenizer.json", "no tokenizer", id="no tokenizer"),
        pytest.param(write("tokenizer.json", b"\x00\xff"), "tokenizer.json", "no tokenizer", id="tokenizer is noise"),
        pytest.param(delete("tokenizer.json"), "tokenizer.json", "missing", id="tokenizer missing"),
        pytest.param(change_json("config.json", auto_map={"x": "y"}), "config.json", "auto_map", id="auto_map"),
        pytest.param(
            change_json("config.json", architectures=["MambaForCausalLM"]),
            "config.json",
            "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
            id="unknown architecture",
        ),
        pytest.param(write("config.json", b"[" * 100_000), "config.json", "not", id="config nested too deeply"),
        pytest.param(write("config.json", b"not json"), "config.json", "not a JSON object", id="config is no JSON"),
        pytest.param(delete("config.json"), "config.json", "missing", id="config missing"),
        pytest.param(pickled_only("pytorch_model.bin"), "pytorch_model.bin", "never read", id=".bin weights"),
        pytest.param(pickled_only("model.pt"), "model.pt", "never read", id=".pt weights"),
        pytest.param(pickled_only("model.pkl"), "model.pkl", "never read", id=".pkl weights"),
        pytest.param(escaping_index, "model.safetensors.index.json", "cannot be in", id="index leaves the folder"),
        pytest.param(pickled_index, "pytorch_model.bin", "never read", id="index names pickled weights"),
        pytest.param(change_json("config.json", vocab_size=300), "model.safetensors", "shape", id="other shape"),
        pytest.param(change_json("config.json", num_hidden_layers=2), "model.safetensors", "missing", id="few layers"),
        pytest.param(
            change_json("generation_config.json", eos_token_id=[2, 10**6]), "tokenizer.json", "EOS", id="EOS too high"
        ),
        pytest.param(
            change_json("generation_config.json", eos_token_id="x"), "generation_config.json", "eos", id="EOS is no id"
        ),
        pytest.param(
            change_json("generation_config.json", temperature="hot"),
            "generation_config.json",
            "temperature",
            id="temperature is no number",
        ),
        pytest.param(
            change_json("tokenizer_config.json", chat_template=7), "tokenizer_config.json", "template", id="template"
        ),
    ],
)  # fmt: skip
def test_a_bad_folder_is_refused(tmp_path: Path, damage: Damage, file: str, reason: str) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=1)
    repository = ModelRepository(tmp_path / "models")
    repository.add(inspect_path(folder), "tiny")
    damage(folder)
    with pytest.raises(BadModelFile) as refused:
        repository.add(inspect_path(folder), "tiny")
    assert str(folder / file) in str(refused.value)
    assert reason in str(refused.value)
    assert repository.versions("tiny") == ["1"]
    repository.open("tiny").verify()


def patch(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(patch(b"GGUF", b"FUGG"), "wrong magic", id="wrong magic"),
        pytest.param(lambda data: data[:8] + b"\xff" * 8 + data[16:], "negative tensor count", id="negative count"),
        pytest.param(
            patch(
                struct.pack("<Q", 20) + b"general.architecture", struct.pack("<Q", 1 << 50) + b"general.architecture"
            ),
            "longer than the file",
            id="string longer than the file",
        ),
        pytest.param(lambda data: data[:-64], "truncated", id="truncated tail"),
        pytest.param(lambda data: data[:300], "file", id="only a beginning"),
        pytest.param(patch(b"gpt2", b"gpt7"), "tokenizer model gpt7", id="unknown tokenizer"),
    ],
)
def test_a_bad_gguf_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=1)
    file = tmp_path / "tiny.gguf"
    write_gguf(folder, file, "llama")
    repository = ModelRepository(tmp_path / "models")
    repository.add(inspect_path(file), "tiny")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BadModelFile) as refused:
        repository.add(inspect_path(file), "tiny")
    assert str(file) in str(refused.value)
    assert reason in str(refused.value)
    assert repository.versions("tiny") == ["1"]
    repository.open("tiny").verify()


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.pkl", "model.ckpt", "MODEL.PT"])
def test_pickled_files_are_refused_unread(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(BadModelFile, match="never read"):
        inspect_path(tmp_path / name)


@pytest.mark.parametrize(("name", "reason"), [("model.safetensors", "folder"), ("notes.txt", "neither")])
def test_other_files_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(BadModelFile, match=reason):
        inspect_path(tmp_path / name)


def test_pickled_files_beside_safetensors_are_not_taken_in(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=1)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    model = ModelRepository(tmp_path / "models").add(inspect_path(folder), "tiny")
    assert {file.suffix for file in model.path.iterdir()} == {".json", ".safetensors", ".jinja", ""}
