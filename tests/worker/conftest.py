"""What tests of worker processes share."""

from pathlib import Path

import pytest

from tests.stored_models import store_tiny_model


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one tiny random model, "tiny"."""
    folder = tmp_path_factory.mktemp("models")
    store_tiny_model(folder, "LlamaForCausalLM")
    return folder / "models"
