"""Fixtures for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings

from services.worker.engine.threads import sleep_while_waiting
from tests.servers import NatsServer

# A change is judged by the same examples however often it is tested; new ones are for test-full to find.
settings.register_profile("repeatable", derandomize=True)

# As in the worker, and for the same reason: tests share their cores with servers and with each other.
sleep_while_waiting()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that are no text are named by their argument: as a name they would be unreadable, and may hold the time."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test alone, with JetStream."""
    folder = tmp_path / "nats"
    folder.mkdir()
    with NatsServer(folder) as server:
        yield server


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[BlockBuster]:
    """Code of ours that blocks the event loop (files, sleeps, sockets) fails its test.

    Allowed: reading /proc for metrics, which is memory, and looking for sources while a crash is being logged.
    """
    with blockbuster_ctx(scanned_modules=["services", "shared"]) as blockbuster:
        for read in ("io.BufferedReader.read", "io.TextIOWrapper.read", "os.listdir"):
            blockbuster.functions[read].can_block_in("prometheus_client/process_collector.py", "collect")
        blockbuster.functions["os.stat"].can_block_in("rich/traceback.py", "_render_stack")
        yield blockbuster
