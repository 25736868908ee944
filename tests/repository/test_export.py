"""An exported model is the same model to transformers."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.repository.errors import ModelError
from shared.repository.export import export_model
from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from tests.repository.gguf_files import write_gguf
from tests.stored_models import store_tiny_model
from tests.tiny_models import ARCHITECTURES, make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.arange(3, 99).unsqueeze(0)).logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_survive(tmp_path: Path, architecture: str) -> None:
    options = {"sliding_window": 24} if architecture == "MistralForCausalLM" else {}
    model = store_tiny_model(tmp_path, architecture, **options)
    exported = export_model(model, tmp_path / "exported")
    assert torch.equal(logits(exported), logits(tmp_path / "sources" / "tiny"))


def test_rope_scaling_and_biases_survive(tmp_path: Path) -> None:
    options = {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", **options)
    exported = export_model(model, tmp_path / "exported")
    assert torch.equal(logits(exported), logits(tmp_path / "sources" / "tiny"))


@pytest.mark.parametrize(
    ("gguf_architecture", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("llama", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
    ],
)
def test_a_gguf_model_computes_what_its_origin_does(tmp_path: Path, gguf_architecture: str, architecture: str) -> None:
    folder = make_tiny_model(tmp_path / "source", architecture)
    write_gguf(folder, tmp_path / "tiny.gguf", gguf_architecture)
    model = ModelRepository(tmp_path / "models").add(inspect_path(tmp_path / "tiny.gguf"), "tiny")
    assert torch.equal(logits(export_model(model, tmp_path / "exported")), logits(folder))


def test_shards_hold_the_same(tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path, "Qwen3ForCausalLM")
    exported = export_model(model, tmp_path / "exported", max_shard_bytes=150_000)
    assert len(list(exported.glob("*.safetensors"))) > 1
    assert torch.equal(logits(exported), logits(tmp_path / "sources" / "tiny"))
    again = ModelRepository(tmp_path / "models").add(inspect_path(exported), "again")
    assert again.config == model.config
    assert again.eos_token_ids == model.eos_token_ids
    assert again.generation_defaults == model.generation_defaults
    assert (again.bos_token, again.eos_token, again.chat_template) == (
        model.bos_token,
        model.eos_token,
        model.chat_template,
    )


@pytest.mark.parametrize("max_shard_bytes", [150_000, 1 << 30])
def test_whoever_may_read_one_file_may_read_all(tmp_path: Path, max_shard_bytes: int) -> None:
    """A server often runs as another user than the one who exported."""
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", num_hidden_layers=1)
    folder = export_model(model, tmp_path / "exported", max_shard_bytes=max_shard_bytes)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert [file.name for file in folder.iterdir() if file.stat().st_mode & 0o777 != 0o644] == []


def test_tokenizer_and_template_survive(tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path, "LlamaForCausalLM")
    theirs = AutoTokenizer.from_pretrained(export_model(model, tmp_path / "exported", "bfloat16"))
    original = AutoTokenizer.from_pretrained(tmp_path / "sources" / "tiny")
    text = "Die Hauptstadt 数 \n 123<|im_end|>"
    assert theirs(text)["input_ids"] == original(text)["input_ids"]
    chat = [{"role": "user", "content": text}]
    assert theirs.apply_chat_template(chat, tokenize=False) == original.apply_chat_template(chat, tokenize=False)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", num_hidden_layers=1)
    (tmp_path / "exported").mkdir()
    with pytest.raises(ModelError, match="exists already"):
        export_model(model, tmp_path / "exported")
    assert list((tmp_path / "exported").iterdir()) == []


def test_a_link_is_left_alone_wherever_it_leads(tmp_path: Path) -> None:
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", num_hidden_layers=1)
    (tmp_path / "exported").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="exists already"):
        export_model(model, tmp_path / "exported")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["exported", "models", "sources"]


@pytest.mark.parametrize("max_shard_bytes", [150_000, 1 << 30])
def test_a_folder_appears_when_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_shard_bytes: int
) -> None:
    """Else a power failure could leave files of the right size and names, but of zeros."""
    model = store_tiny_model(tmp_path, "LlamaForCausalLM", num_hidden_layers=1)
    flushed: dict[str, int] = {}
    at_the_rename: dict[str, int] = {}
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        flushed[Path(os.readlink(f"/proc/self/fd/{descriptor}")).name] = os.fstat(descriptor).st_size

    def noted_rename(source: Path, target: Path) -> None:
        at_the_rename.update(flushed)
        at_the_rename["."] = flushed.get(source.name, -1)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    folder = export_model(model, tmp_path / "exported", max_shard_bytes=max_shard_bytes)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert {name: at_the_rename.get(name) for name in sizes} == sizes
    assert at_the_rename["."] >= 0
    assert tmp_path.name in flushed  # the new name itself
