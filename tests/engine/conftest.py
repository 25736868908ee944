"""Models and engines that many tests share."""

from pathlib import Path

import pytest
import torch

from services.worker.engine.cpu import CpuEngine
from shared.repository.huggingface import inspect_folder
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.engine.options import Options
from tests.engine.reference import Reference
from tests.tiny_models import make_tiny_model

KV_CACHE_BYTES = 256 << 20


@pytest.fixture(scope="session")
def smollm() -> StoredModel:
    """The default model, fetched if it is not there."""
    return ModelRepository().ensure("smollm2-135m")


@pytest.fixture(scope="session")
def smollm_engine(smollm: StoredModel) -> CpuEngine:
    """The default model in float32."""
    return CpuEngine.load(smollm, Options(max_model_len=2048, kv_cache_memory_bytes=KV_CACHE_BYTES))


@pytest.fixture(scope="session")
def smollm_reference(smollm: StoredModel) -> Reference:
    return Reference.from_stored_llama(smollm)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """A random Llama of three layers."""
    folder = tmp_path_factory.mktemp("tiny")
    return store_tiny_model(folder, "LlamaForCausalLM")


@pytest.fixture
def tiny_engine(tiny_model: StoredModel) -> CpuEngine:
    """A fresh engine on the random Llama, float32."""
    return CpuEngine.load(tiny_model, Options(kv_cache_memory_bytes=4 << 20))


def store_tiny_model(
    folder: Path, architecture: str, torch_dtype: torch.dtype = torch.float32, **overrides: object
) -> StoredModel:
    """A random model in a repository of its own; its Hugging Face folder is folder / "source"."""
    make_tiny_model(folder / "source", architecture, torch_dtype=torch_dtype, **overrides)
    return ModelRepository(folder / "models").add(inspect_folder(folder / "source"), "tiny")
