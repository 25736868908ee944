"""What tests of nodes share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.node.folder import DataFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    """A data folder that this process owns."""
    data = DataFolder(tmp_path / "data")
    data.open()
    yield data
    data.close()
