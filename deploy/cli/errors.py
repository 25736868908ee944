"""Errors in words for a terminal."""

from deploy.node.folder import DataFolder

WITHOUT_NODE = "start `tokenbus up`, or give another --data-dir"


class NoNode(RuntimeError):
    """No node runs on the data folder; the message names it."""


def node_nats_url(data_dir: str) -> str:
    """nats.url of a data folder, the default one for "". Raises NoNode."""
    folder = DataFolder.at(data_dir).root
    try:
        return (folder / "nats.url").read_text(encoding="utf-8").strip()
    except OSError:
        raise NoNode(f"no node runs on {folder}") from None


def one_line(error: Exception) -> str:
    """The message without Python's wrapping: `/data: Read-only file system`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error)
