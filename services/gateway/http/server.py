"""Listening: uvicorn's protocol without uvicorn's server, whose signal handling the service runtime already does.

A supervisor may hand over listening sockets by file descriptor. Several gateways then accept from the same socket:
whoever is quickest gets the connection, and one that closes its descriptor takes nothing from the others.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.server import ServerState

from services.gateway.http.limits import Limits
from services.gateway.http.protocol import LimitedHttpProtocol

BACKLOG = 4096
DRAIN_POLL_S = 0.05
# A client that keeps its connection between two requests sends the next one within this time, or hardly ever.
IDLE_LINGER_S = 1.0


class HttpServer:
    """Serves an ASGI application on host and port, or on sockets that are open already (listen_fds).

    `host` and `port` are the real ones after start.
    """

    def __init__(
        self,
        app: ASGI3Application,
        host: str,
        port: int,
        limits: Limits,
        on_refused: Callable[[int], None],
        listen_fds: Sequence[int] = (),
    ) -> None:
        self.host = host
        self.port = port
        self._listen_fds = listen_fds
        self._limits = limits
        self._on_refused = on_refused
        self._config = Config(
            app,
            http=LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.keep_alive_s),
        )
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []

    @property
    def num_connections(self) -> int:
        """Open connections, idle ones among them."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Accept connections; OSError when the address is taken or a descriptor is no socket."""
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every malformed request
        self._config.load()
        loop = asyncio.get_running_loop()
        if not self._listen_fds:
            self._servers = [await loop.create_server(self._connection, self.host, self.port, backlog=BACKLOG)]
        for fd in self._listen_fds:
            listener = socket.socket(fileno=fd)
            self._servers.append(await loop.create_server(self._connection, sock=listener, backlog=BACKLOG))
        address = self._servers[0].sockets[0].getsockname()
        self.port = address[1]
        if self._listen_fds:
            self.host = address[0]

    def _connection(self) -> LimitedHttpProtocol:
        return LimitedHttpProtocol(self._config, self._state, self._limits, self._on_refused)

    async def drain(self, is_over: Callable[[], bool]) -> None:
        """Take no new connections, and return once the open ones have ended, or when is_over().

        What runs is answered, and so is what still comes on an open connection: its client cannot know that this
        server is leaving, and may not repeat a request that broke off. Answers that begin now close their connection;
        the others are closed when they have been idle for IDLE_LINGER_S.
        """
        self._stop_accepting()
        self._state.default_headers.append((b"connection", b"close"))
        began_s = asyncio.get_running_loop().time()
        while self._state.connections and not is_over():
            idle_before_s = asyncio.get_running_loop().time() - IDLE_LINGER_S
            if began_s <= idle_before_s:
                self._close_idle(idle_before_s)
            await asyncio.sleep(DRAIN_POLL_S)

    def _close_idle(self, idle_before_s: float) -> None:
        for connection in self._state.connections:
            if isinstance(connection, LimitedHttpProtocol) and connection.is_idle_since(idle_before_s):
                connection.transport.close()

    def _stop_accepting(self) -> None:
        """Closes this process's descriptors; a socket that others listen on as well lives on."""
        for server in self._servers:
            server.close()

    async def stop(self, timeout_s: float) -> None:
        """Take no new connections, let requests end within timeout_s, then close all."""
        self._stop_accepting()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=timeout_s)
        for connection in list(self._state.connections):
            connection.transport.close()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
