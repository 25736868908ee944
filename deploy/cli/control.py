"""Talking to a running node through the socket in its data folder."""

import socket
from collections.abc import Iterator

import msgspec

from deploy.cli.errors import NoNode
from deploy.node.control import short_address
from deploy.node.control_messages import Answer, Command, Failed, Finished
from deploy.node.folder import DataFolder

_decode = msgspec.json.Decoder(Answer).decode


class CommandFailed(RuntimeError):
    """The node could not do it; the message is its own."""


def converse(data_dir: str, command: Command) -> Iterator[Answer]:
    """What the node of this data folder (the default one for "") answers, up to its Finished. Blocks.

    Raises NoNode, CommandFailed, OSError.
    """
    folder = DataFolder.at(data_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with short_address(folder.control) as address:
                connection.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise NoNode(f"no node runs on {folder.root}") from None
        connection.sendall(msgspec.json.encode(command) + b"\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                answer = _decode(line)
                if isinstance(answer, Failed):
                    raise CommandFailed(answer.message)
                if isinstance(answer, Finished):
                    return
                yield answer
    raise CommandFailed("the node ended before it was done")
