"""Fixtures for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.worker.engine.threads import sleep_while_waiting
from tests.servers import NatsServer

# As in the worker, and for the same reason: tests share their cores with servers and with each other.
sleep_while_waiting()


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test alone, with JetStream."""
    folder = tmp_path / "nats"
    folder.mkdir()
    with NatsServer(folder) as server:
        yield server
