"""Who the processes of a node are on the bus: identities of the node's own, or those of a cluster."""

from collections.abc import Collection
from pathlib import Path

from deploy.nats.authorization import ACCOUNT, ServerSecurity
from deploy.nats.identities import Identities
from deploy.nats.permissions import ROLES, SERVICES
from deploy.node.checks import NotPossible
from deploy.node.config import NodeConfig
from deploy.node.folder import DataFolder

SERVER = "nats-server"
SERVER_HOSTS = ("127.0.0.1", "localhost")
OPEN_ACCOUNT = "$G"  # whose streams an open nats-server stores


def check_options(config: NodeConfig, given: Collection[str]) -> None:
    """Raise NotPossible for options of a server of the node's own with --nats, and the other way round. given: the
    names of those that were given."""
    if config.nats_credentials and not config.nats:
        raise NotPossible("--nats-credentials are for the server at --nats; a server of the node's own has --secure")
    if config.nats and config.secure:
        raise NotPossible(
            "--secure is for a NATS server that the node starts; for the one at --nats give --nats-credentials"
        )
    if config.nats and "nats_sync_interval" in given:
        raise NotPossible(
            "--nats-sync-interval is of a NATS server that the node starts; the one at --nats has its own in its "
            "configuration"
        )


def node_identities(config: NodeConfig, folder: DataFolder) -> Identities | None:
    """The folder that the services' identities are in, made at the first secured start; None for an open bus.

    Raises NotPossible for a folder without the files, and OSError.
    """
    if config.nats_credentials:
        return _existing(Path(config.nats_credentials))
    if not config.secure:
        return None
    identities = Identities(folder.credentials)
    identities.make()
    identities.make_server(SERVER, SERVER_HOSTS)
    return identities


def check_log(config: NodeConfig, folder: DataFolder) -> None:
    """Raise NotPossible where the folder's log was made the other way, with or without --secure: the node would begin
    another log beside it, and every request there would be lost to sight."""
    own, other = (ACCOUNT, OPEN_ACCOUNT) if config.secure else (OPEN_ACCOUNT, ACCOUNT)
    if config.nats or folder.has_log(own) or not folder.has_log(other):
        return
    made, way = ("without --secure", "leave --secure out") if config.secure else ("with --secure", "give --secure")
    raise NotPossible(
        f"data folder {folder.root} holds the log of a node {made}: {way}, "
        f"or give another --data-dir, or delete {folder.store} and with it all requests"
    )


def server_security(identities: Identities, shard: str) -> ServerSecurity:
    """What the node's own nats-server needs to know."""
    return ServerSecurity(
        nkeys={role: identities.public_key(role) for role in ROLES},
        shards=[shard],
        tls=identities.server_files(SERVER),
    )


def _existing(root: Path) -> Identities:
    identities = Identities(root)
    for role in SERVICES:
        for path in identities.options(role).values():
            if not Path(path).is_file():
                raise NotPossible(f"--nats-credentials {root}: {Path(path).name} is not there")
    return identities
