"""Whatever a model's file holds, reading it ends in a model or in a ModelError, and soon."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.repository.config_json import parse_config
from shared.repository.errors import ModelError
from shared.repository.generation import generation_defaults
from shared.repository.gguf_config import gguf_config
from shared.repository.gguf_file import GgufFile, read_gguf
from shared.repository.gguf_tokenizer import read_tokenizer
from shared.repository.safetensors_file import read_safetensors_header
from tests.repository.gguf_files import write_gguf
from tests.repository.test_config_json import SMALL
from tests.tiny_models import make_tiny_model

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(st.text(max_size=8), SCALARS, max_size=3)
GGUF_VALUES = SCALARS | st.lists(SCALARS, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("hostile") / "model", "LlamaForCausalLM", num_hidden_layers=1)
    write_gguf(folder, folder / "tiny.gguf", "llama")
    return folder


def is_refused_or_read(read: Any, *arguments: Any) -> None:
    try:
        read(*arguments)
    except ModelError as error:
        assert str(error).isprintable()


@QUICK
@given(data=st.data())
def test_config_json(data: st.DataObject) -> None:
    keys = st.sampled_from([*SMALL, "rope_scaling", "rope_parameters", "head_dim", "sliding_window", "layer_types"])
    document = {**SMALL, data.draw(keys): data.draw(VALUES)}
    is_refused_or_read(parse_config, document, Path("config.json"))


@QUICK
@given(document=st.dictionaries(st.sampled_from(["temperature", "top_k", "top_p", "max_new_tokens"]), VALUES))
def test_generation_config(document: dict[str, Any]) -> None:
    is_refused_or_read(generation_defaults, document, Path("generation_config.json"))


@QUICK
@given(data=st.data())
def test_gguf_metadata(folder: Path, data: st.DataObject) -> None:
    gguf = read_gguf(folder / "tiny.gguf")
    key = data.draw(
        st.sampled_from(
            [*gguf.metadata, "llama.expert_count", "llama.rope.scaling.type", "tokenizer.ggml.eot_token_id"]
        )
    )
    changed = GgufFile(gguf.path, {**gguf.metadata, key: data.draw(GGUF_VALUES)}, gguf.tensors)
    is_refused_or_read(gguf_config, changed)
    is_refused_or_read(read_tokenizer, changed)


@QUICK
@given(position=st.integers(0, 12_000), patch=st.binary(min_size=1, max_size=8))
def test_gguf_bytes(folder: Path, position: int, patch: bytes) -> None:
    data = bytearray((folder / "tiny.gguf").read_bytes())
    data[position : position + len(patch)] = patch
    file = folder / "patched.gguf"
    file.write_bytes(data)
    is_refused_or_read(read_gguf, file)


@QUICK
@given(position=st.integers(0, 1_500), patch=st.binary(min_size=1, max_size=8))
def test_safetensors_bytes(folder: Path, position: int, patch: bytes) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[position : position + len(patch)] = patch
    file = folder / "patched.safetensors"
    file.write_bytes(data)
    is_refused_or_read(read_safetensors_header, file)


@QUICK
@given(header=VALUES | st.dictionaries(st.text(max_size=8), VALUES, max_size=3))
def test_safetensors_headers(folder: Path, header: Any) -> None:
    text = json.dumps(header).encode()
    file = folder / "made.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    is_refused_or_read(read_safetensors_header, file)
