"""Where commands find the NATS server of a node, and how they sign in."""

from pathlib import Path

import pytest

from deploy.cli.nats_access import NatsAccess, find_access
from deploy.nats.identities import Identities
from deploy.node.folder import DataFolder

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


def test_files_that_are_given_win(folder: DataFolder, tmp_path: Path) -> None:
    folder.write_urls("nats.url", [SECURED])
    other = Identities(tmp_path / "other")
    other.make(["client"])
    seed = other.seed_file("client")
    _, credentials = find_access(NatsAccess(data_dir=str(folder.root), nats_nkey_seed_file=str(seed)), "client")
    assert credentials.seed == seed.read_text().strip() and credentials.tls is None
