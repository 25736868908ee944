"""The test server itself: starts, keeps its store over a crash, ends."""

import os
import socket
from pathlib import Path

import pytest

from deploy.node.nats_server import QUIET_PORTS, NatsServerOptions, free_port, is_ready, write_config
from tests.servers import NatsServer


def test_server_starts_and_stops(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        pid = server.pid
        assert is_ready("127.0.0.1", server.port)
    assert not is_ready("127.0.0.1", server.port)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_restart_keeps_port_and_store(nats_server: NatsServer) -> None:
    url, store = nats_server.url, nats_server.options.store_dir
    nats_server.kill()
    assert not is_ready("127.0.0.1", nats_server.port)
    nats_server.restart()
    assert (nats_server.url, nats_server.options.store_dir) == (url, store)
    assert is_ready("127.0.0.1", nats_server.port)


@pytest.mark.parametrize(("interval", "line"), [("2m", 'sync_interval: "2m"'), ("always", "sync_interval: always")])
def test_sync_interval_is_written(tmp_path: Path, interval: str, line: str) -> None:
    config = tmp_path / "nats.conf"
    write_config(config, NatsServerOptions(store_dir=tmp_path / 'a "quoted" folder', port=4222, sync_interval=interval))
    assert line in config.read_text()


def test_a_free_port_is_none_that_outgoing_connections_get() -> None:
    port = free_port()
    assert port in QUIET_PORTS
    assert free_port(preferred=port) == port
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(preferred=port) != port


def test_odd_store_path_and_sync_always_start(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    with NatsServer(folder, sync_interval="always") as server:
        assert server.options.store_dir.is_dir()
