"""The part of a nats-server configuration that says who may do what, and that everybody must prove who they are."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from deploy.nats.permissions import Permissions, permissions

ACCOUNT = "TOKENBUS"  # whose streams a secured server stores apart from all others
SIGN_IN_LIMIT_S = 5  # TLS handshake and sign-in; many services start at once after a server came back


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files of a listener, as the server finds them. ca_file certifies whoever may connect."""

    ca_file: Path
    cert_file: Path
    key_file: Path


class ServerSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """nkeys: public key by role. tls: of the listener for clients."""

    nkeys: Mapping[str, str]
    shards: Sequence[str]
    tls: TlsFiles


def security_lines(security: ServerSecurity) -> list[str]:
    """TLS with client certificates, and one account with a user per role. No user is in the system account."""
    return [
        *tls_block(security.tls),
        f"authorization {{ timeout: {SIGN_IN_LIMIT_S} }}",
        "accounts {",
        "  SYS {}",
        f"  {ACCOUNT} {{",
        "    jetstream: enabled",
        "    users: [",
        *(_user(role, key, permissions(role, security.shards)) for role, key in security.nkeys.items()),
        "    ]",
        "  }",
        "}",
        "system_account: SYS",
    ]


def tls_block(files: TlsFiles) -> list[str]:
    """TLS in which both sides show a certificate."""
    return [
        "tls {",
        f"  cert_file: {_quoted(files.cert_file)}",
        f"  key_file: {_quoted(files.key_file)}",
        f"  ca_file: {_quoted(files.ca_file)}",
        "  verify: true",
        f"  timeout: {SIGN_IN_LIMIT_S}",
        "}",
    ]


def _user(role: str, key: str, allowed: Permissions) -> str:
    heard = [*allowed.subscribe, *(f"{subject} {queue}" for subject, queue in allowed.queues)]
    return (
        f"      # {role}\n"
        f"      {{ nkey: {key}, permissions: {{\n"
        f"        publish: {{ allow: {json.dumps(allowed.publish)} }}\n"
        f"        subscribe: {{ allow: {json.dumps(heard)} }}\n"
        f"      }} }}"
    )


def _quoted(path: Path) -> str:
    return json.dumps(str(path))
