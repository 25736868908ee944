"""Models in a repository, for tests of whoever opens them."""

from functools import cache
from pathlib import Path
from typing import Any

from shared.repository.inspect import inspect_path
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel
from tests.tiny_models import make_tiny_model


@cache
def smollm2() -> StoredModel:
    """The default model, from the user's own repository; fetched the first time."""
    return ModelRepository().ensure("smollm2-135m")


def store_tiny_model(folder: Path, architecture: str, name: str = "tiny", **options: Any) -> StoredModel:
    """A tiny random model in a repository at folder / "models"; options are those of make_tiny_model."""
    source = make_tiny_model(folder / "sources" / name, architecture, **options)
    return ModelRepository(folder / "models").add(inspect_path(source), name)
