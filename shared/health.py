"""The health and metrics listener of a service: a few GET paths, answered from memory.

/live     200 while the event loop turns (an answer is the proof)
/ready    200 when the service can do its work now, else 503 with what is missing
/health   the same with the details: device, model, log
/metrics  Prometheus text
"""

import asyncio
from collections.abc import Callable

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

HEAD_LIMIT_BYTES = 8192
READ_TIMEOUT_S = 5.0

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Health(msgspec.Struct):
    """Whether a service can work now, and why not. details hold device, model, log and the like.

    missing: what it lacks, in words for machines such as nats, worker or canary (docs/health.md).
    """

    ready: bool
    details: dict[str, object]
    missing: list[str] = []


class Page(msgspec.Struct):
    """One HTTP answer."""

    status: int
    body: bytes
    content_type: str = "application/json"


def health_page(path: str, read: Callable[[], Health]) -> Page:
    """The answer to a GET of /live, /ready, /health or /metrics; 404 for every other path."""
    if path == "/live":
        return Page(200, msgspec.json.encode({"live": True}))
    if path == "/metrics":
        return Page(200, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
    if path not in ("/ready", "/health"):
        return Page(404, msgspec.json.encode({"error": "known paths are /live, /ready, /health and /metrics"}))
    health = read()
    body: dict[str, object] = {"ready": health.ready, "missing": health.missing}
    if path == "/health":
        body |= health.details
    return Page(200 if health.ready else 503, msgspec.json.encode(body))


class HealthServer:
    """Listens on host and port (0: any free one); `port` is the real one after start."""

    def __init__(self, host: str, port: int, read: Callable[[], Health]) -> None:
        self.host = host
        self.port = port
        self._read = read
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; OSError when the address is taken."""
        self._server = await asyncio.start_server(self._on_connection, self.host, self.port, limit=HEAD_LIMIT_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and end what is connected."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In a task of its own: that one's cancellation asyncio (3.11) would report as an error of nobody's."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_TIMEOUT_S)
            page = self._answer(head)
            writer.write(_response(page))
            await asyncio.wait_for(writer.drain(), READ_TIMEOUT_S)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass  # a probe that hung up, dawdled or sent too much gets no answer
        finally:
            writer.close()

    def _answer(self, head: bytes) -> Page:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return Page(400, msgspec.json.encode({"error": "not an HTTP request"}))
        method, target, _ = parts
        if method != "GET":
            return Page(405, msgspec.json.encode({"error": "only GET"}))
        return health_page(target.split("?", 1)[0], self._read)


def _response(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + page.body
