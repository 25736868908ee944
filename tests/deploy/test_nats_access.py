"""Where commands find the NATS server of a node, and how they sign in."""

import re
from pathlib import Path

import pytest

from deploy.cli.nats_access import NatsAccess, find_access
from deploy.nats.identities import Identities
from deploy.node.folder import DataFolder
from shared.bus.credentials import CredentialsError

OPEN, SECURED = "nats://127.0.0.1:4222", "tls://127.0.0.1:4222"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """Of a node that has been secured."""
    folder = DataFolder(tmp_path)
    Identities(folder.credentials).make(["client"])
    return folder


@pytest.mark.parametrize(("url", "signs_in"), [(OPEN, False), (SECURED, True)])
@pytest.mark.parametrize("is_given", [False, True])
def test_credentials_of_the_folder_are_for_a_node_that_asks_for_them(
    folder: DataFolder, url: str, signs_in: bool, is_given: bool
) -> None:
    """An open node on the folder has no TLS, and a client that insists on it would never reach it."""
    folder.write_urls("nats.url", [url if not is_given else "nats://elsewhere:1"])
    found, credentials = find_access(NatsAccess(data_dir=str(folder.root), nats=url if is_given else ""), "client")
    assert found == url
    assert (bool(credentials.seed), credentials.tls is not None) == (signs_in, signs_in)


def test_credentials_of_a_server_elsewhere_are_where_the_node_says(folder: DataFolder, tmp_path: Path) -> None:
    elsewhere = Identities(tmp_path / "elsewhere")
    elsewhere.make(["client"])
    folder.write_urls("nats.url", [SECURED])
    folder.write_credentials(elsewhere.root)
    access = NatsAccess(data_dir=str(folder.root))
    assert find_access(access, "client")[1].seed == elsewhere.seed_file("client").read_text().strip()
    with pytest.raises(CredentialsError, match=re.escape(str(elsewhere.seed_file("verify")))):
        find_access(access, "verify")
    folder.remove_urls()
    assert folder.client_credentials == folder.credentials


def test_files_that_are_given_win(folder: DataFolder, tmp_path: Path) -> None:
    folder.write_urls("nats.url", [SECURED])
    other = Identities(tmp_path / "other")
    other.make(["client"])
    seed = other.seed_file("client")
    _, credentials = find_access(NatsAccess(data_dir=str(folder.root), nats_nkey_seed_file=str(seed)), "client")
    assert credentials.seed == seed.read_text().strip() and credentials.tls is None
