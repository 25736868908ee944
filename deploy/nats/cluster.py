"""A secured NATS cluster: keys, certificates and one configuration per node, ready to be copied to three machines.

    python -m deploy.nats.cluster --dir cluster --nodes a=10.0.0.1 b=10.0.0.2 c=10.0.0.3 --install-dir /etc/tokenbus
    python -m deploy.nats.cluster --dir cluster --run      three servers on this machine, to try it out

Below --dir: a folder per node (nats-server.conf, tls/), credentials/ for the services and clients, and nats.url with
the URLs of all nodes. Services then take `--nats URLS`, schedulers `--nats-replicas 3`, each the credentials of its
role; `tokenbus up` takes the folder as `--nats-credentials`. Run again with a node or a shard more: the keys stay. More
in docs/security.md.
"""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from deploy.nats.authorization import ServerSecurity, TlsFiles
from deploy.nats.identities import Identities
from deploy.nats.permissions import DEFAULT_SHARDS, ROLES
from deploy.node.nats_server import (
    SYNC_INTERVAL_EXPECTS,
    SYNC_INTERVAL_PATTERN,
    ClusterOptions,
    NatsServerOptions,
    command,
    config_text,
    wait_ready,
)
from shared.config import SHARD_PATTERN, ConfigError, build, fail, make_parser, read_options

PROG = "python -m deploy.nats.cluster"
CLIENT_PORT = 4222
ROUTE_PORT = 6222
READY_S = 30.0
STOP_S = 10.0
NODE_PATTERN = r"^[A-Za-z0-9_-]+=[A-Za-z0-9._-]+(:[0-9]{1,5}){0,2}$"


class ClusterConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of this command."""

    dir: Annotated[str, msgspec.Meta(description="folder to write to; what is in it stays", min_length=1)]
    nodes: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=NODE_PATTERN)], ...],
        msgspec.Meta(
            description="the servers, NAME=HOST[:PORT[:ROUTE_PORT]]",
            min_length=1,
            extra={"expects": "servers such as a=10.0.0.1 b=nats-b.example:4222:6222"},
        ),
    ] = ("a=127.0.0.1:4222:6222", "b=127.0.0.1:4223:6223", "c=127.0.0.1:4224:6224")
    shards: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=SHARD_PATTERN)], ...],
        msgspec.Meta(
            description="shards whose logs the servers store", min_length=1, extra={"expects": "names such as s0 s1"}
        ),
    ] = DEFAULT_SHARDS
    install_dir: Annotated[
        str, msgspec.Meta(description="where a node's folder will lie on its machine; none: where it is written")
    ] = ""
    sync_interval: Annotated[
        str,
        msgspec.Meta(
            description='how often stored records are synced to disk; "always": before each acknowledgement',
            pattern=SYNC_INTERVAL_PATTERN,
            extra=SYNC_INTERVAL_EXPECTS,
        ),
    ] = "2m"
    run: Annotated[bool, msgspec.Meta(description="run all nodes on this machine until stopped")] = False


class ClusterNode(msgspec.Struct, frozen=True):
    """One server: its address for clients, its port for other servers, and its configuration file."""

    name: str
    host: str
    port: int
    route_port: int
    config: Path

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"tls://{self.host}:{self.port}"


def prepare(config: ClusterConfig) -> list[ClusterNode]:
    """Write everything below config.dir. Raises ConfigError when two nodes have one name, and OSError."""
    root = Path(config.dir).absolute()
    nodes = [_parse(text, root) for text in config.nodes]
    if len({node.name for node in nodes}) < len(nodes):
        raise ConfigError("--nodes: two servers have the same name")
    identities = Identities(root / "credentials")
    identities.make()
    for node in nodes:
        identities.make_server(node.name, [node.host, "localhost", "127.0.0.1"])
        identities.make_route(node.name, [node.host])
        _write_node(config, node, nodes, identities)
    (root / "nats.url").write_text(urls(nodes) + "\n", encoding="utf-8")
    return nodes


def urls(nodes: list[ClusterNode]) -> str:
    """All of them, as `--nats` takes them."""
    return ",".join(node.url for node in nodes)


def _parse(text: str, root: Path) -> ClusterNode:
    name, _, address = text.partition("=")
    host, *given = address.split(":")
    port, route_port = [*map(int, given), *(CLIENT_PORT, ROUTE_PORT)[len(given) :]]
    return ClusterNode(name, host, port, route_port, root / name / "nats-server.conf")


def _write_node(config: ClusterConfig, node: ClusterNode, nodes: list[ClusterNode], identities: Identities) -> None:
    folder = node.config.parent
    home = Path(config.install_dir) if config.install_dir else folder
    options = NatsServerOptions(
        store_dir=home / "store",
        host=node.host,
        port=node.port,
        server_name=node.name,
        sync_interval=config.sync_interval,
        security=ServerSecurity(
            nkeys={role: identities.public_key(role) for role in ROLES},
            shards=config.shards,
            tls=_copy(identities.server_files(node.name), folder, home, "server"),
        ),
        cluster=ClusterOptions(
            name="tokenbus",
            host=node.host,
            port=node.route_port,
            routes=[f"{each.host}:{each.route_port}" for each in nodes],
            tls=_copy(identities.route_files(node.name), folder, home, "route"),
        ),
    )
    node.config.write_text(config_text(options), encoding="utf-8")


def _copy(files: TlsFiles, folder: Path, home: Path, label: str) -> TlsFiles:
    """Put the files into the node's folder; their paths as the node will see them."""
    (folder / "tls").mkdir(mode=0o700, parents=True, exist_ok=True)  # a copy gets its mode after its contents
    names = {"ca_file": f"{label}-ca.pem", "cert_file": f"{label}.pem", "key_file": f"{label}.key"}
    for field, name in names.items():
        shutil.copy(getattr(files, field), folder / "tls" / name)
    return msgspec.convert({field: home / "tls" / name for field, name in names.items()}, TlsFiles)


def _run(nodes: list[ClusterNode]) -> int:
    """All servers until SIGTERM or Ctrl-C, also if some die; 1 if all have, or if one does not get ready."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    servers = [subprocess.Popen(command(node.config), stdin=subprocess.DEVNULL) for node in nodes]
    try:
        if not all(wait_ready(node.host, node.port, READY_S) for node in nodes):
            sys.stderr.write(f"{PROG}: not all servers got ready within {READY_S:g} s\n")
            return 1
        sys.stdout.write(f"The cluster is ready: {urls(nodes)}\n")
        sys.stdout.flush()
        for server in servers:
            server.wait()
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(STOP_S)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Write the files, run the servers if asked to; 2 for a bad option, 1 when something failed."""
    try:
        parser = make_parser(ClusterConfig, PROG, "Write the configuration of a secured NATS cluster.")
        config = build(ClusterConfig, read_options(ClusterConfig, parser, argv))
        nodes = prepare(config)
    except ConfigError as error:
        fail(PROG, str(error))
    except OSError as error:
        sys.stderr.write(f"{PROG}: --dir {config.dir}: {error.strerror or error}\n")
        return 1
    if config.run:
        return _run(nodes)
    for node in nodes:
        sys.stdout.write(f"{node.name}: {node.config.parent} for {node.url}\n")
    sys.stdout.write(f"credentials: {Path(config.dir).absolute() / 'credentials'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
