"""Who a process is on the bus, and whom it trusts: an nkey seed, the servers' authority, a certificate of its own.

Everything is read once, before the event loop runs; errors name the option to blame and never quote a secret.
"""

import ssl
import stat
from pathlib import Path

import msgspec
import nkeys

from shared.config import NatsIdentity, option_name


class CredentialsError(ValueError):
    """A file of the credentials is missing, unreadable, open to everybody, or holds something else."""


class Credentials(msgspec.Struct, frozen=True):
    """What Bus.connect signs in with. seed: nkey seed of a user, "" to sign in without. tls: None for plain TCP."""

    seed: str = ""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Credentials(seed={'set' if self.seed else 'none'}, tls={'on' if self.tls else 'off'})"


ANONYMOUS = Credentials()


def read_credentials(files: NatsIdentity) -> Credentials:
    """What the files hold; blocks. Raises CredentialsError."""
    return Credentials(_read_seed(files.nats_nkey_seed_file), _tls_context(files))


def _read_seed(path: str) -> str:
    if not path:
        return ""
    option = f"{option_name('nats_nkey_seed_file')} {path}"
    text = _read_secret(path, option).strip()
    try:
        prefix, raw = nkeys.decode_seed(text.encode())
        is_whole = nkeys.encode_seed(raw, prefix).decode() == text  # decode_seed leaves the checksum unchecked
    except (nkeys.NkeysError, ValueError):
        is_whole = False
    if not is_whole:
        raise CredentialsError(f"{option}: no nkey seed is in it")
    if not text.startswith("SU"):
        raise CredentialsError(f"{option}: it holds an nkey seed, but not one of a user (SU...)")
    return text


def _read_secret(path: str, option: str) -> str:
    """The text of a file that nobody but owner and group may read."""
    try:
        mode = Path(path).stat().st_mode
        if stat.S_IMODE(mode) & 0o007:
            raise CredentialsError(f"{option}: everybody on this machine may read or change it; chmod 600 it")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CredentialsError(f"{option}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CredentialsError(f"{option}: it is no text file") from None


def _tls_context(files: NatsIdentity) -> ssl.SSLContext | None:
    """TLS that checks the server's certificate and name; None if no file asks for TLS."""
    ca, cert, key = files.nats_ca_file, files.nats_cert_file, files.nats_key_file
    if not (ca or cert or key):
        return None
    if bool(cert) != bool(key):
        raise CredentialsError(f"{option_name('nats_cert_file')} and {option_name('nats_key_file')} belong together")
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # ssl.SSLError is one
        raise CredentialsError(f"{option_name('nats_ca_file')} {ca}: {_reason(error, 'certificate')}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert:
        _load_pair(context, cert, key)
    return context


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    key_option = f"{option_name('nats_key_file')} {key}"
    _read_secret(key, key_option)

    def no_password() -> str:
        raise CredentialsError(f"{key_option}: it is encrypted; give one without a password")

    cert_option = f"{option_name('nats_cert_file')} {cert}"
    try:
        Path(cert).read_bytes()
    except OSError as error:
        raise CredentialsError(f"{cert_option}: {error.strerror or error}") from None
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except ssl.SSLError as error:
        reason = "the key does not belong to the certificate" if "MISMATCH" in str(error) else "no certificate and key"
        raise CredentialsError(f"{cert_option}, {key_option}: {reason}") from None


def _reason(error: OSError, what: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no {what} is in it"
    return error.strerror or str(error)
