"""Where the NATS server is and how to sign in to it: by options, or from the data folder of a node."""

from typing import Annotated

import msgspec

from deploy.cli.errors import node_nats_url
from deploy.nats.identities import Identities
from deploy.node.folder import DataFolder, NodeDataDir
from shared.bus.credentials import ANONYMOUS, Credentials, read_credentials
from shared.config import NATS_URL_EXPECTS, NATS_URL_PATTERN, NatsIdentity, option_name, without_password


class NatsAccess(NatsIdentity, kw_only=True, frozen=True):
    """Options of commands that speak to NATS."""

    nats: Annotated[
        str,
        msgspec.Meta(
            description="URL of the NATS server; none: nats.url of the data folder, and its credentials",
            pattern=rf"^$|{NATS_URL_PATTERN}",
            extra=NATS_URL_EXPECTS,
        ),
    ] = ""
    data_dir: NodeDataDir = ""


def find_access(config: NatsAccess, role: str) -> tuple[str, Credentials]:
    """URL and credentials; the data folder's for this role unless others are given. Raises NoNode, CredentialsError.

    A folder keeps the credentials of a secured node when the next one on it is open: what the URL says decides. A node
    on a secured server elsewhere has written into its folder where its credentials are.
    """
    url = config.nats or node_nats_url(config.data_dir)
    files: NatsIdentity = config
    if url.startswith("tls:") and not _names_files(config) and (not config.nats or config.data_dir):
        root = DataFolder.at(config.data_dir).client_credentials
        if root.exists():
            files = NatsIdentity(**Identities(root).options(role))
    return url, read_credentials(files)


def no_answer(url: str, credentials: Credentials) -> str:
    """The message when nobody answers there in time."""
    text = f"no NATS server answers at {without_password(url)}"
    if url.startswith("tls:") and credentials == ANONYMOUS:
        options = [option_name(field) for field in NatsIdentity.__struct_fields__]
        text += f"; a secured one lets only those in who give {', '.join(options)}"
    return text


def _names_files(config: NatsIdentity) -> bool:
    return any(getattr(config, field) for field in NatsIdentity.__struct_fields__)
