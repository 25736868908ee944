"""A real nats-server with TLS, identities and permissions, and connections of any role to it."""

from pathlib import Path

import nats
from nats.aio.client import Client

from deploy.nats.authorization import ServerSecurity
from deploy.nats.identities import Identities, make_seed
from deploy.nats.permissions import ROLES
from deploy.node.nats_server import write_config
from shared.bus.credentials import Credentials, read_credentials
from shared.config import NatsIdentity
from tests.servers import NatsServer

HOSTS = ("127.0.0.1", "localhost")
SERVER = "nats-server"


class SecuredServer(NatsServer):
    """Also knows an observer, who may do everything: tests see through it what arrives."""

    def __init__(self, folder: Path, shards: tuple[str, ...] = ("s0",)) -> None:
        self.identities = Identities(folder / "identities")
        self.identities.make()
        self.identities.make_server(SERVER, HOSTS)
        self._observer_seed = make_seed()
        (folder / "identities" / "observer.seed").write_bytes(self._observer_seed)
        self._credentials = {role: credentials_of(self.identities, role) for role in ROLES}
        super().__init__(folder, security=security_of(self.identities, shards))

    def write_config(self, path: Path) -> None:
        """Called before each start."""
        write_config(path, self.options)
        user = f"    users: [\n      {{ nkey: {self.identities.public_key('observer')} }}"
        path.write_text(path.read_text().replace("    users: [", user, 1))

    def credentials(self, role: str) -> Credentials:
        """Of one role."""
        return self._credentials[role]

    async def observer(self) -> Client:
        """A connection that may do everything."""
        return await nats.connect(
            self.url, tls=self.credentials("admin").tls, nkeys_seed_str=self._observer_seed.decode()
        )

    async def role(self, role: str, violations: list[str]) -> Client:
        """A plain connection of a role; what the server denies is appended to violations."""

        async def on_error(error: Exception) -> None:
            violations.append(str(error))

        credentials = self.credentials(role)
        return await nats.connect(
            self.url,
            tls=credentials.tls,
            nkeys_seed_str=credentials.seed,
            inbox_prefix=f"_INBOX.{role}",
            error_cb=on_error,
            skip_subject_validation=True,
        )


def security_of(identities: Identities, shards: tuple[str, ...], server: str = SERVER) -> ServerSecurity:
    """Server options for these identities."""
    return ServerSecurity(
        nkeys={role: identities.public_key(role) for role in ROLES},
        shards=list(shards),
        tls=identities.server_files(server),
    )


def credentials_of(identities: Identities, role: str) -> Credentials:
    """As a process of this role reads them."""
    return read_credentials(NatsIdentity(**identities.options(role)))


async def settle(connection: Client) -> None:
    """Wait until the server has answered all that was sent: nats-py's own flush lets its ping overtake the rest."""
    await connection._flush_pending(force_flush=True)
    await connection.flush()
