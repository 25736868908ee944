"""Fixtures for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import NatsServer


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test alone, with JetStream."""
    folder = tmp_path / "nats"
    folder.mkdir()
    with NatsServer(folder) as server:
        yield server
