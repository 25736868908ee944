"""What must hold before a node starts, checked early so that the reason is one clear line."""

from urllib.parse import urlsplit

from deploy.node.nats_server import is_ready
from shared.config import without_password

NATS_TIMEOUT_S = 5.0
NATS_DEFAULT_PORT = 4222


class NotPossible(RuntimeError):
    """The node cannot start like this; the message says why."""


def check_nats(url: str) -> None:
    """Raise NotPossible unless a NATS server with JetStream greets at one of these URLs (commas between)."""
    parts = [urlsplit(each) for each in url.split(",")]
    if not any(is_ready(each.hostname or "", each.port or NATS_DEFAULT_PORT, NATS_TIMEOUT_S) for each in parts):
        raise NotPossible(f"--nats {without_password(url)}: no NATS server with JetStream answers there")
