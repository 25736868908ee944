"""The HTTP sockets of a node: one for all gateways, one more for each further gateway."""

import os
import socket
from collections.abc import Iterator

import pytest

from deploy.node.checks import NotPossible
from deploy.node.listeners import Listeners, open_listeners
from deploy.node.nats_server import free_port
from tests.waiting import LIMIT_S


@pytest.fixture
def three() -> Iterator[Listeners]:
    listeners = open_listeners("127.0.0.1", 0, 3)
    yield listeners
    listeners.close()


def test_all_share_the_first_port_and_each_further_one_has_its_own(three: Listeners) -> None:
    assert three.urls == [f"http://127.0.0.1:{three.port + index}" for index in range(3)]
    ports = [[socket.socket(fileno=os.dup(fd)) for fd in three.fds(index)] for index in range(3)]
    try:
        numbers = [[each.getsockname()[1] - three.port for each in sockets] for sockets in ports]
        assert numbers == [[0], [0, 1], [0, 2]]
    finally:
        for sockets in ports:
            for each in sockets:
                each.close()


def test_clients_wait_as_soon_as_the_node_has_the_port(three: Listeners) -> None:
    with socket.create_connection(("127.0.0.1", three.port + 2), timeout=LIMIT_S):
        three.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", three.port), timeout=LIMIT_S)


def test_a_taken_port_is_told_and_nothing_stays_open() -> None:
    with open_taken() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NotPossible, match=f"--port {port} on 127.0.0.1 is in use by another process"):
            open_listeners("127.0.0.1", port - 1, 2)
        with socket.create_server(("127.0.0.1", port - 1)):
            pass


def open_taken() -> socket.socket:
    """A listening socket whose lower neighbour is free."""
    while True:
        port = free_port()
        if free_port(preferred=port - 1) == port - 1:
            return socket.create_server(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("host", "port", "count", "words"),
    [
        ("127.0.0.1", 65535, 2, "--port 65535 with --gateways 2 needs port 65536, beyond 65535"),
        ("host.invalid", 0, 1, "--host host.invalid: "),
        ("192.0.2.1", 0, 1, "--host 192.0.2.1, --port 0: cannot listen there: Cannot assign"),
    ],
)
def test_what_cannot_be_is_one_line(host: str, port: int, count: int, words: str) -> None:
    with pytest.raises(NotPossible, match=words):
        open_listeners(host, port, count)


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("localhost", "localhost"), ("127.0.0.1", "127.0.0.1")]
)
def test_urls_are_for_clients_of_this_machine(host: str, shown: str) -> None:
    listeners = open_listeners(host, 0, 1)
    try:
        assert listeners.urls == [f"http://{shown}:{listeners.port}"]
        socket.create_connection((shown, listeners.port), timeout=LIMIT_S).close()
    finally:
        listeners.close()


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert Listeners("::1", 8000, [[]]).urls == Listeners("::", 8000, [[]]).urls == ["http://[::1]:8000"]
