"""Credentials are read once, and each mistake names the option to blame, never a secret."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import nkeys
import pytest
from cryptography.hazmat.primitives import serialization

from deploy.nats.certificates import is_issued_by, issue, make_authority
from deploy.nats.identities import Identities, make_seed
from deploy.nats.permissions import ROLES
from shared.bus.credentials import CredentialsError, read_credentials
from shared.config import ConfigError, NatsIdentity, ServiceConfig, build, without_password


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    made = Identities(tmp_path_factory.mktemp("made") / "identities")
    made.make()
    made.make_server("nats-server", ["127.0.0.1", "localhost"])
    return made


def test_what_was_made_can_be_read(identities: Identities) -> None:
    for role in ROLES:
        credentials = read_credentials(NatsIdentity(**identities.options(role)))
        assert credentials.seed.startswith("SU") and credentials.tls is not None
        assert credentials.seed not in repr(credentials)
    assert len({identities.public_key(role) for role in ROLES}) == len(ROLES)


def test_nothing_given_is_nobody() -> None:
    credentials = read_credentials(NatsIdentity())
    assert credentials.seed == "" and credentials.tls is None


def test_secrets_are_the_owners_alone(identities: Identities) -> None:
    assert stat.S_IMODE(identities.root.stat().st_mode) == 0o700
    secrets = [*identities.root.glob("*.seed"), *identities.root.glob("*.key")]
    assert len(secrets) == 2 * len(ROLES) + 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_what_is_there_stays(identities: Identities) -> None:
    before = {path: path.read_bytes() for path in identities.root.iterdir()}
    identities.make()
    identities.make_server("nats-server", ["localhost"])
    assert {path: path.read_bytes() for path in identities.root.iterdir()} == before
    identities.make_server("nats-server", ["localhost", "127.0.0.1", "nats.example"])
    assert identities.certificate("nats-server").read_bytes() != before[identities.certificate("nats-server")]


def test_an_authority_whose_key_is_kept_elsewhere_stays(tmp_path: Path) -> None:
    """A new one in its place would lock out all that the old one has signed."""
    made = Identities(tmp_path)
    made.make(["worker"])
    made.key("ca").unlink()
    before = made.authority.read_bytes()
    made.make(["worker"])
    assert made.authority.read_bytes() == before
    with pytest.raises(FileNotFoundError, match=r"ca\.key"):
        made.make(["worker", "gateway"])


def test_a_new_authority_signs_everything_anew(tmp_path: Path) -> None:
    made = Identities(tmp_path)
    made.make(["worker"])
    made.make_server("nats-server", ["localhost"])
    before = {name: made.certificate(name).read_bytes() for name in ("worker", "nats-server")}
    made.authority.unlink()
    made.make(["worker"])
    made.make_server("nats-server", ["localhost"])
    for name, certificate in before.items():
        assert made.certificate(name).read_bytes() != certificate
        assert is_issued_by(made.certificate(name).read_bytes(), made.authority.read_bytes())
        assert not is_issued_by(certificate, made.authority.read_bytes())


SEED, CA, CERT, KEY = "nats_nkey_seed_file", "nats_ca_file", "nats_cert_file", "nats_key_file"


def write(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


SEED_OPTION, CA_OPTION = "--nats-nkey-seed-file", "--nats-ca-file"
CERT_OPTION, KEY_OPTION = "--nats-cert-file", "--nats-key-file"
OTHER = issue(make_authority("another"), "somebody")
ACCOUNT_SEED = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_ACCOUNT)
SCRYPT_KEY = serialization.load_pem_private_key(OTHER.key, None).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
)

# What the file holds and its mode, None for no file; the option that the error names; words of it.
BAD_FILES = {
    "no seed file": (SEED, None, SEED_OPTION, "No such file"),
    "seed for all to read": (SEED, (b"SU", 0o644), SEED_OPTION, "chmod 600"),
    "empty seed": (SEED, (b"", 0o600), SEED_OPTION, "no nkey seed"),
    "no seed": (SEED, (b"hello", 0o600), SEED_OPTION, "no nkey seed"),
    "damaged seed": (SEED, (make_seed()[:-4] + b"AAAA", 0o600), SEED_OPTION, "no nkey seed"),
    "binary": (SEED, (b"\xff\xfe\x00", 0o600), SEED_OPTION, "no text"),
    "an account's seed": (SEED, (ACCOUNT_SEED, 0o600), SEED_OPTION, "not one of a user"),
    "no authority": (CA, None, CA_OPTION, "No such file"),
    "authority is no certificate": (CA, (b"hello", 0o600), CA_OPTION, "no certificate"),
    "no certificate file": (CERT, None, CERT_OPTION, "No such file"),
    "certificate is none": (CERT, (b"hello", 0o600), CERT_OPTION, "no certificate and key"),
    "no key file": (KEY, None, KEY_OPTION, "No such file"),
    "key for all to read": (KEY, (OTHER.key, 0o604), KEY_OPTION, "chmod 600"),
    "another's key": (KEY, (OTHER.key, 0o600), KEY_OPTION, "does not belong"),
    "no key": (KEY, (b"hello", 0o600), KEY_OPTION, "no certificate and key"),
    "encrypted key": (KEY, (SCRYPT_KEY, 0o600), KEY_OPTION, "encrypted"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named(identities: Identities, tmp_path: Path, case: str) -> None:
    field, content, option, words = BAD_FILES[case]
    path = str(tmp_path / "missing") if content is None else write(tmp_path / "bad", *content)
    with pytest.raises(CredentialsError) as raised:
        read_credentials(NatsIdentity(**{**identities.options("worker"), field: path}))
    assert f"{option} {path}" in str(raised.value) and words in str(raised.value)
    assert "PRIVATE KEY" not in str(raised.value)


@pytest.mark.parametrize("left_out", [CERT, KEY])
def test_certificate_and_key_belong_together(identities: Identities, left_out: str) -> None:
    with pytest.raises(CredentialsError, match="--nats-cert-file and --nats-key-file belong together"):
        read_credentials(NatsIdentity(**{**identities.options("worker"), left_out: ""}))


def test_a_service_with_bad_credentials_ends_with_one_line(tmp_path: Path) -> None:
    """Status 2, which supervisors do not retry."""
    path = write(tmp_path / "seed", make_seed(), 0o644)
    command = [sys.executable, "-m", "services.tokenizer", "--nats-nkey-seed-file", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr.startswith(f"tokenbus tokenizer: --nats-nkey-seed-file {path}: ") and done.stderr.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("url", "accepted"),
    [
        ("nats://127.0.0.1:4222", True),
        ("tls://a:4222,tls://b.example:4223,tls://[::1]:4224", True),
        ("nats://me:secret@a,nats://b", True),
        ("nats://a,", False),
        (",nats://a", False),
        ("nats://a,http://b", False),
        ("nats://a nats://b", False),
        ("nats://a,nats://b,c", False),
    ],
)
def test_several_urls_have_commas_between(url: str, accepted: bool) -> None:
    try:
        assert build(ServiceConfig, {"nats": url}).nats == url and accepted
    except ConfigError:
        assert not accepted


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://me:secret@a:1,tls://token@b:2", "nats://a:1,tls://b:2"),
    ],
)
def test_passwords_in_urls_are_not_logged(url: str, shown: str) -> None:
    assert without_password(url) == shown
