"""What must hold before a node starts, checked early so that the reason is one clear line."""

import errno
import socket
from urllib.parse import urlsplit

from deploy.node.nats_server import is_ready

NATS_TIMEOUT_S = 5.0
NATS_DEFAULT_PORT = 4222
MAX_PORT = 65535


class NotPossible(RuntimeError):
    """The node cannot start like this; the message says why."""


def check_address(host: str, port: int) -> None:
    """Raise NotPossible unless this process could listen there; port 0 asks for any."""
    if port > MAX_PORT:
        raise NotPossible(f"port {port} does not exist: the last one is {MAX_PORT}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise NotPossible(f"--host {host}: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NotPossible(f"--port {port} on {host} is in use by another process") from None
        raise NotPossible(f"cannot listen on {host} port {port}: {error.strerror}") from None


def check_nats(url: str) -> None:
    """Raise NotPossible unless a NATS server with JetStream greets at this URL."""
    parts = urlsplit(url)
    if not is_ready(parts.hostname or "", parts.port or NATS_DEFAULT_PORT, NATS_TIMEOUT_S):
        raise NotPossible(f"--nats {url}: no NATS server with JetStream answers there")
