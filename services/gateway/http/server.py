"""Listening: uvicorn's protocol without uvicorn's server, whose signal handling the service runtime already does."""

import asyncio
import logging
from collections.abc import Callable

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.server import ServerState

from services.gateway.http.limits import Limits
from services.gateway.http.protocol import LimitedHttpProtocol

BACKLOG = 4096


class HttpServer:
    """Serves an ASGI application; `port` is the real one after start."""

    def __init__(
        self, app: ASGI3Application, host: str, port: int, limits: Limits, on_refused: Callable[[int], None]
    ) -> None:
        self.host = host
        self.port = port
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
        self._server: asyncio.Server | None = None

    @property
    def num_connections(self) -> int:
        """Open connections, idle ones among them."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Listen; OSError when the address is taken."""
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every malformed request
        self._config.load()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, self.host, self.port, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    def _connection(self) -> LimitedHttpProtocol:
        return LimitedHttpProtocol(self._config, self._state, self._limits, self._on_refused)

    async def stop(self, timeout_s: float) -> None:
        """Take no new connections, let requests end within timeout_s, then close all."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=timeout_s)
        for connection in list(self._state.connections):
            connection.transport.close()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
