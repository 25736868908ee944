"""A TCP proxy between every service and nats-server that can cut, slow down or reset one service's edge.

python -m tests.chaos.proxy SERVER_PORT
Prints its own port, then takes commands, one JSON object a line on stdin:
    {"edge": "worker-4711", "do": "cut"}                    nothing passes; bytes wait as they would in TCP
    {"edge": "worker-4711", "do": "delay", "delay_s": 0.2, "jitter_s": 0.1}
    {"edge": "worker-4711", "do": "reset"}                  its connections break
    {"edge": "worker-4711", "do": "heal"}
All services connect to the one port. An edge is known by the name in the client's CONNECT line, `<service>-<pid>-...`.
"""

import asyncio
import json
import random
import re
import sys
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass

import uvloop

CONNECT_NAME = re.compile(rb'"name":\s*"([a-z]+-\d+)')
HEAD_BYTES = 4096


@dataclass(slots=True)
class Rule:
    """What happens to an edge now. delay_s and jitter_s hold for each direction."""

    cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0


class Side(asyncio.Protocol):
    """One of the two connections of a link. Bytes that come in here leave at the other side, in order."""

    def __init__(self, link: "Link") -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.waiting: deque[tuple[float, bytes]] = deque()  # (due, bytes from here)
        self.is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_choked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.link.on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.link.on_lost(self)

    def pause_writing(self) -> None:
        assert self.other is not None
        self.other.choke(True)

    def resume_writing(self) -> None:
        assert self.other is not None
        self.other.choke(False)

    def choke(self, choked: bool) -> None:
        """Whether the far end takes no more bytes for now."""
        self._is_choked = choked
        self.obey()

    def data_received(self, data: bytes) -> None:
        self.link.on_data(self, data)
        rule = self.link.rule
        target = self.other.transport if self.other is not None else None
        if not self.waiting and target is not None and not rule.cut and not rule.delay_s:
            self._write(target, data)
            return
        due = asyncio.get_running_loop().time() + rule.delay_s + random.uniform(0, rule.jitter_s)
        self.waiting.append((max(due, self.waiting[-1][0] if self.waiting else 0.0), data))
        self.obey()

    def obey(self) -> None:
        """Read and send as the rule and the far end allow."""
        if self.transport is None:
            return
        if not self.is_over and not self.transport.is_closing():
            if self.link.rule.cut or self._is_choked:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        self._send_due()

    def _send_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        target = self.other.transport if self.other is not None else None
        if self.link.rule.cut or target is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self.waiting and self.waiting[0][0] <= now:
            self._write(target, self.waiting.popleft()[1])
        if self.waiting:
            self._timer = loop.call_at(self.waiting[0][0], self._send_due)
        elif self.is_over:
            target.close()

    def _write(self, target: asyncio.Transport, data: bytes) -> None:
        """Nobody reads what arrives at an end that is gone."""
        if not target.is_closing():
            target.write(data)

    def abort(self) -> None:
        """Break the connection at once."""
        self.waiting.clear()
        if self.transport is not None:
            self.transport.abort()


class Link:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy
        self.edge = ""
        self.rule = Rule()
        self.client = Side(self)
        self.server = Side(self)
        self.client.other, self.server.other = self.server, self.client
        self._head = b""

    def on_made(self, side: Side) -> None:
        """A connection stands; the client's comes first."""
        if side is self.client:
            self._proxy.links.add(self)
            self._proxy.spawn(self._connect())
        elif self.client.is_over:
            side.abort()
        else:
            self.client.obey()

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, "127.0.0.1", self._proxy.port)
        except OSError:
            self.client.abort()

    def on_data(self, side: Side, data: bytes) -> None:
        """Learn the edge's name from the first bytes of the client."""
        if self.edge or side is self.server:
            return
        self._head += data
        found = CONNECT_NAME.search(self._head)
        if found is None:
            self.edge = "?" if len(self._head) > HEAD_BYTES else ""
            return
        self.edge = found[1].decode()
        self._head = b""
        self.rule = self._proxy.rules.get(self.edge, self.rule)

    def on_lost(self, side: Side) -> None:
        """One end is gone: what is under way still arrives, then the other end goes too."""
        side.obey()
        if self.client.is_over and self.server.transport is None:
            self._proxy.links.discard(self)
        if self.client.is_over and self.server.is_over:
            self._proxy.links.discard(self)

    def apply(self, rule: Rule) -> None:
        """Another rule holds from now on; what waited under the old one leaves under the new one."""
        self.rule = rule
        for side in (self.client, self.server):
            if not rule.delay_s:
                side.waiting = deque((0.0, data) for _, data in side.waiting)
            side.obey()

    def reset(self) -> None:
        """Break both connections."""
        self.client.abort()
        self.server.abort()


class Proxy:
    """All links and the rules of their edges. port: of nats-server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.links: set[Link] = set()
        self.rules: dict[str, Rule] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine and keep it from being collected."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def command(self, line: bytes) -> None:
        """One command, see the module."""
        given = json.loads(line)
        edge, do = given["edge"], given["do"]
        links = [link for link in self.links if link.edge == edge]
        if do == "reset":
            for link in links:
                link.reset()
            return
        rule = Rule(cut=do == "cut", delay_s=given.get("delay_s", 0.0), jitter_s=given.get("jitter_s", 0.0))
        if do == "heal":
            self.rules.pop(edge, None)
        else:
            self.rules[edge] = rule
        for link in links:
            link.apply(rule)


async def main(port: int) -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    proxy = Proxy(port)
    server = await loop.create_server(lambda: Link(proxy).client, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        proxy.command(line)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
