"""`tokenbus gateway` as a process."""

import socket
import subprocess
import sys

from tests.servers import NatsServer
from tests.waiting import LIMIT_S


def test_a_taken_port_is_one_clear_line(nats_server: NatsServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "services.gateway", "--nats", nats_server.url, "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert f"--host 127.0.0.1, --port {port}: cannot listen there: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr
