"""Keys and certificates of a secured bus in one folder, made once.

ca.pem, ca.key                  the authority; its key signs new certificates and is needed for nothing else
<server>.pem, <server>.key      of each nats-server, good for the hosts under which it is reached
routes-ca.pem, .key             of a cluster: a second authority, for what servers say to each other
<server>-route.pem, .key        of each server of a cluster, signed by that one: a client's certificate opens no route
<role>.seed                     nkey seed that the role signs in with
<role>.pem, <role>.key          client certificate of the role

All but ca.pem and the certificates are secrets (mode 0600, the folder 0700). A process needs ca.pem and the three files
of its own role, nothing more.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import nkeys

from deploy.nats.authorization import TlsFiles
from deploy.nats.certificates import Pair, hosts_of, is_issued_by, issue, make_authority
from deploy.nats.permissions import ROLES

AUTHORITY = "ca"
ROUTE_AUTHORITY = "routes-ca"


class Identities:
    """The folder. Everything blocks; OSError where files cannot be read or written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, roles: Iterable[str] = ROLES) -> None:
        """Make what is missing: the authority, and seed and certificate of each role."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        self._make_authority(AUTHORITY)
        for role in roles:
            if not self.seed_file(role).exists():
                _write_secret(self.seed_file(role), make_seed())
            if not self._is_certified(role, AUTHORITY):
                self._write_pair(role, issue(self._pair(AUTHORITY), f"tokenbus {role}"))

    def make_server(self, name: str, hosts: Sequence[str]) -> None:
        """Make a server's certificate unless there is one that is good for these hosts."""
        self._make_server(name, hosts, AUTHORITY)

    def make_route(self, name: str, hosts: Sequence[str]) -> None:
        """Make a server's certificate towards the other servers of its cluster, as make_server."""
        self._make_authority(ROUTE_AUTHORITY)
        self._make_server(_route(name), hosts, ROUTE_AUTHORITY)

    def server_files(self, name: str) -> TlsFiles:
        """What a server shows to clients, and whom it lets in."""
        return TlsFiles(ca_file=self.authority, cert_file=self.certificate(name), key_file=self.key(name))

    def route_files(self, name: str) -> TlsFiles:
        """The same towards other servers."""
        route = _route(name)
        authority = self.certificate(ROUTE_AUTHORITY)
        return TlsFiles(ca_file=authority, cert_file=self.certificate(route), key_file=self.key(route))

    @property
    def authority(self) -> Path:
        """Certificate of the authority that servers and clients are checked against."""
        return self.certificate(AUTHORITY)

    def certificate(self, name: str) -> Path:
        """Certificate of a role or server."""
        return self.root / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Private key of that certificate."""
        return self.root / f"{name}.key"

    def seed_file(self, role: str) -> Path:
        """File with the role's nkey seed."""
        return self.root / f"{role}.seed"

    def public_key(self, role: str) -> str:
        """The nkey that servers know the role by."""
        pair = nkeys.from_seed(bytearray(self.seed_file(role).read_bytes().strip()))
        public: str = pair.public_key.decode()
        pair.wipe()
        return public

    def options(self, role: str) -> dict[str, str]:
        """The options of a process of this role (shared.config.NatsIdentity)."""
        return {
            "nats_nkey_seed_file": str(self.seed_file(role)),
            "nats_ca_file": str(self.authority),
            "nats_cert_file": str(self.certificate(role)),
            "nats_key_file": str(self.key(role)),
        }

    def _make_authority(self, name: str) -> None:
        """An authority whose key is kept elsewhere stays: it is missed only where something is to be signed."""
        if not self.certificate(name).exists():
            self._write_pair(name, make_authority(f"Tokenbus {name}"))

    def _make_server(self, name: str, hosts: Sequence[str], authority: str) -> None:
        is_good = self._is_certified(name, authority) and set(hosts) <= hosts_of(self.certificate(name).read_bytes())
        if not is_good:
            self._write_pair(name, issue(self._pair(authority), name, hosts))

    def _is_certified(self, name: str, authority: str) -> bool:
        """Whether there is a pair, from the authority that there is now."""
        if not (self.certificate(name).exists() and self.key(name).exists()):
            return False
        return is_issued_by(self.certificate(name).read_bytes(), self.certificate(authority).read_bytes())

    def _pair(self, name: str) -> Pair:
        return Pair(self.certificate(name).read_bytes(), self.key(name).read_bytes())

    def _write_pair(self, name: str, pair: Pair) -> None:
        _write_secret(self.key(name), pair.key)
        self.certificate(name).write_bytes(pair.certificate)


def _route(name: str) -> str:
    return f"{name}-route"


def make_seed() -> bytes:
    """A new nkey seed of a user."""
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed


def _write_secret(path: Path, data: bytes) -> None:
    """Whole at once, and never readable by others."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data + (b"" if data.endswith(b"\n") else b"\n"))
    draft.replace(path)
