"""The socket in the data folder through which a running node is asked and told (control_messages.py).

Only the owner of the folder may use it (mode 0600). One command per connection.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from deploy.node.config import DRAIN_ORDER
from deploy.node.control_messages import (
    Answer,
    Command,
    Failed,
    Finished,
    ProcessStatus,
    Progress,
    RestartRequest,
)
from deploy.node.keeper import Keeper
from deploy.node.node import Node
from deploy.node.rollout import RestartFailed

COMMAND_TIMEOUT_S = 5.0
LIMIT_BYTES = 64 * 1024
MAX_PATH_BYTES = 100  # of a socket's address: 107 on Linux, 103 elsewhere

_decode = msgspec.json.Decoder(Command).decode


class ControlServer:
    """Listens while the context lasts; its end cancels what is under way. is_open: whether restarts are taken."""

    def __init__(self, node: Node, path: Path, ready_timeout_s: float) -> None:
        self.is_open = False
        self._node = node
        self._path = path
        self._ready_timeout_s = ready_timeout_s
        self._restarting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "ControlServer":
        self._server = await asyncio.start_unix_server(self._on_client, sock=_listen(self._path), limit=LIMIT_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        client = _Client(reader, writer)
        try:
            await self._serve(client)
            await asyncio.wait_for(writer.drain(), COMMAND_TIMEOUT_S)
        except asyncio.CancelledError:
            client.say(Failed("the node is stopping"))
        except (TimeoutError, ConnectionError):
            pass  # a client that says nothing, does not read or has gone gets no answer
        finally:
            writer.close()

    async def _serve(self, client: "_Client") -> None:
        try:
            command = _decode(await asyncio.wait_for(client.reader.readline(), COMMAND_TIMEOUT_S))
        except (ValueError, RecursionError) as error:  # ValueError: also of a line that is too long
            client.say(Failed(f"the command cannot be read: {error}"))
            return
        if isinstance(command, RestartRequest):
            await self._restart(command, client)
            return
        for status in await asyncio.gather(*(_status(keeper) for keeper in self._node.keepers)):
            client.say(status)
        client.say(Finished())

    async def _restart(self, command: RestartRequest, client: "_Client") -> None:
        present = {keeper.process.role for keeper in self._node.keepers}
        unknown = [service for service in command.services if service not in present]
        if unknown:
            client.say(Failed(f"--service: no {unknown[0]} runs on this node; there are {', '.join(sorted(present))}"))
        elif not self.is_open:
            client.say(Failed("the node is still starting, or stops"))
        elif self._restarting.locked():
            client.say(Failed("a restart is under way"))
        else:
            async with self._restarting:
                try:
                    await self._node.restart(
                        command.services or [service for service in DRAIN_ORDER if service in present],
                        rolling=command.rolling,
                        ready_timeout_s=self._ready_timeout_s,
                        report=lambda process, stage, pid: client.say(Progress(process, stage, pid)),
                        goes_on=client.is_there,
                    )
                except* (RestartFailed, OSError) as failures:
                    client.say(Failed("\n".join(str(each) for each in failures.exceptions)))
                else:
                    client.say(Finished())


class _Client:
    """Who is connected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def is_there(self) -> bool:
        """Whether it still waits for answers."""
        return not self.reader.at_eof()

    def say(self, answer: Answer) -> None:
        """A line, if it is still there. Lines are few and short: none waits for the last one to leave."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(answer) + b"\n")


async def _status(keeper: Keeper) -> ProcessStatus:
    child = keeper.child
    ready, leading = False, False
    if child is not None:
        ready, leading = await asyncio.gather(child.probe.is_ready(), child.probe.is_leading())
    return ProcessStatus(keeper.name, keeper.pid, ready, leading, keeper.num_deaths)


def _listen(path: Path) -> socket.socket:
    """A socket that only its owner may use. Called with the data folder's lock held: what lies there is stale."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        with short_address(path) as address:
            listener.bind(address)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(umask)
    return listener


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """The address of a socket, short enough for the system also where the path is not."""
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
