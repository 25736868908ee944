"""A small server with OpenAI's streaming API, for a client that must cope with any."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandIn(BaseHTTPRequestHandler):
    """What the model's name says: `three`: three tokens in an event; `short`: half of the tokens; `torn`: breaks off;
    `full`: 503; `error`: an error event after two tokens; `silent`: no usage; else one token in an event.
    """

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body, self.headers["Authorization"]))  # type: ignore[attr-defined]
        if body["model"] == "full":
            error = {"error": {"message": "come back later", "code": "queue_full"}}
            self._send(503, json.dumps(error).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(body):
            data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            half = len(data) // 2  # an event may come in two chunks
            for part in (data[:half], data[half:]):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        if body["model"] != "torn":
            self.wfile.write(b"0\r\n\r\n")

    def _events(self, body: dict[str, Any]) -> Iterator[Any]:
        model, is_chat = body["model"], "messages" in body
        num = body["max_tokens"] // 2 if model in ("short", "torn") else body["max_tokens"]
        size = 3 if model == "three" else 1
        if is_chat:
            yield {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        for place in range(0, num, size):
            words = " w" * min(size, num - place)
            content = {"delta": {"content": words}} if is_chat else {"text": words}
            yield {"choices": [{"index": 0, **content, "finish_reason": None}], "usage": None}
            if model == "error" and place == 1:
                yield {"error": {"message": "the engine is gone", "code": "gone"}}
                return
        if model == "torn":
            return
        yield {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
        if model != "silent" and body["stream_options"]["include_usage"]:
            yield {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": num}}
        yield "[DONE]"

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class StandInServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StandIn)
        self.bodies: list[tuple[str, dict[str, Any], str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """A client that has heard enough closes."""


@contextmanager
def stand_in() -> Iterator[StandInServer]:
    """Serves while the context lasts; bodies: path, body and Authorization of what was asked."""
    with StandInServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
