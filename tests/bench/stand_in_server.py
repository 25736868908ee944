"""A peer's stand-in: streams as many tokens as are asked for, and has a child process, as real ones do.

Arguments: port, then optionally the number of requests after which it breaks streams off.
"""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers /v1/completions and the chat's endpoint alike."""

    protocol_version = "HTTP/1.1"
    num_left = sys.maxsize

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        Handler.num_left -= 1
        if Handler.num_left < 0:
            self.close_connection = True
            return
        for _ in range(body["max_tokens"]):
            self._event({"choices": [{"index": 0, "text": " a", "finish_reason": None}]})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing: its output holds the port and the child's pid alone."""

    def _event(self, event: object) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        Handler.num_left = int(sys.argv[2])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
