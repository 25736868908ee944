"""The HTTP sockets of a node: opened once, handed to its gateways, closed when the node stops.

Connections belong to the socket, not to a process: while a gateway is started again they wait for it, or another
gateway takes them. Nobody is ever refused because of a restart.
"""

import errno
import socket
from collections.abc import Sequence
from typing import Any

from deploy.node.checks import NotPossible
from deploy.node.nats_server import free_port

BACKLOG = 4096
MAX_PORT = 65535
NUM_PORT_TRIES = 20
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # localhost may have an IPv6 address where there is no IPv6
SHOWN_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Listeners:
    """All gateways accept on port; gateway number i > 0 accepts on port + i as well, for those who want that one."""

    def __init__(self, host: str, port: int, sockets: Sequence[Sequence[socket.socket]]) -> None:
        self.host = host
        self.port = port
        self._sockets = sockets

    @property
    def urls(self) -> list[str]:
        """Of the shared port and then of each own one, for clients on this machine."""
        host = SHOWN_HOSTS.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return [f"http://{host}:{self.port + index}" for index in range(len(self._sockets))]

    def fds(self, index: int) -> tuple[int, ...]:
        """File descriptors for gateway number index."""
        own = self._sockets[index] if index else ()
        return tuple(each.fileno() for each in (*self._sockets[0], *own))

    def close(self) -> None:
        """Leave them to the gateways: once the last of those has closed them, new connections are refused."""
        for sockets in self._sockets:
            for each in sockets:
                each.close()


def open_listeners(host: str, port: int, count: int) -> Listeners:
    """Listen on count ports in a row; port 0: wherever they are free. Raises NotPossible."""
    if port:
        return Listeners(host, port, _listen_in_a_row(host, port, count))
    _listen(host, 0)[0].close()  # says what is wrong with the host itself
    for _ in range(NUM_PORT_TRIES):
        found = free_port(host)
        try:
            return Listeners(host, found, _listen_in_a_row(host, found, count))
        except NotPossible:
            continue
    raise NotPossible(f"no {count} free ports in a row on {host}")


def _listen_in_a_row(host: str, port: int, count: int) -> list[list[socket.socket]]:
    opened: list[list[socket.socket]] = []
    try:
        for index in range(count):
            if port + index > MAX_PORT:
                raise NotPossible(f"--port {port} with --gateways {count} needs port {port + index}, beyond {MAX_PORT}")
            opened.append(_listen(host, port + index))
    except NotPossible:
        Listeners(host, port, opened).close()
        raise
    return opened


def _listen(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host that this machine has. Raises NotPossible."""
    opened: list[socket.socket] = []
    absent: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            try:
                opened.append(_listen_at(family, address))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
        if absent is not None and not opened:
            raise absent
    except OSError as error:
        for listener in opened:
            listener.close()
        raise _reason(error, host, port) from None
    return opened


def _listen_at(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _reason(error: OSError, host: str, port: int) -> NotPossible:
    if isinstance(error, socket.gaierror):
        return NotPossible(f"--host {host}: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return NotPossible(f"--port {port} on {host} is in use by another process")
    return NotPossible(f"--host {host}, --port {port}: cannot listen there: {error.strerror}")
