"""Configuration that objects: a TOML file, command line options on top, and an error for everything unknown.

A configuration is one frozen msgspec Struct. Each field is `Annotated[T, msgspec.Meta(description=..., ge=...)]` with a
default; the same declaration gives the TOML key (`max_num_seqs`), the option (`--max-num-seqs`), its help and check.
"""

import argparse
import difflib
import re
import sys
import tomllib
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

C = TypeVar("C", bound=msgspec.Struct)
TEST_PREFIX = "test_"  # of fields that break something on purpose

_NATS_URL = r"(nats|tls)://([^@/,\s]+@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?/?"
NATS_URL_PATTERN = rf"^{_NATS_URL}(,{_NATS_URL})*$"
SHARD_PATTERN = "^[A-Za-z0-9_-]{1,32}$"  # part of subjects and of stream names
NATS_URL_EXPECTS = {"expects": "a URL such as nats://127.0.0.1:4222, or several of one cluster with commas between"}


def without_password(url: str) -> str:
    """The URLs as they may be logged: without user and password."""
    return re.sub(r"//[^@/,]*@", "//", url)


class ConfigError(ValueError):
    """A key or value that no configuration can have; the message names it."""


class NatsIdentity(msgspec.Struct, kw_only=True, frozen=True):
    """Who a process is to NATS and whom it trusts: paths only, the secrets stay in the files."""

    nats_nkey_seed_file: Annotated[
        str, msgspec.Meta(description="file with the nkey seed that signs in to NATS; none: no sign-in")
    ] = ""
    nats_ca_file: Annotated[
        str, msgspec.Meta(description="PEM file of the authority that NATS servers must be certified by; implies TLS")
    ] = ""
    nats_cert_file: Annotated[
        str, msgspec.Meta(description="PEM file of this process's own certificate, where NATS servers ask for one")
    ] = ""
    nats_key_file: Annotated[str, msgspec.Meta(description="PEM file of that certificate's private key")] = ""


class ServiceConfig(NatsIdentity, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What every service has. Subclasses add their own fields in the same way."""

    nats: Annotated[
        str,
        msgspec.Meta(
            description="URL of the NATS server, or several of one cluster with commas between",
            pattern=NATS_URL_PATTERN,
            extra=NATS_URL_EXPECTS,
        ),
    ] = "nats://127.0.0.1:4222"
    shard: Annotated[
        str, msgspec.Meta(description="shard (log) that this service belongs to", pattern=SHARD_PATTERN)
    ] = "s0"
    name: Annotated[str, msgspec.Meta(description="label of this instance in logs and NATS metadata")] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], msgspec.Meta(description="lowest level that is logged")
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"], msgspec.Meta(description="log lines for people or for machines, on stderr")
    ] = "console"
    health_host: Annotated[str, msgspec.Meta(description="address of the health and metrics listener")] = "127.0.0.1"
    health_port: Annotated[
        int, msgspec.Meta(description="its port; 0: any free one (logged), -1: no listener", ge=-1, le=65535)
    ] = 0
    drain_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds from SIGTERM until the service gives up draining and exits 1", gt=0)
    ] = 30.0


def load(kind: type[C], argv: list[str], prog: str) -> C:
    """The configuration from `--config FILE` and the options in argv, options winning.

    Ends the process with status 2 and a message naming the key when one is unknown or has a bad value.
    """
    parser = make_parser(kind, prog)
    try:
        return build(kind, read_options(kind, parser, argv))
    except ConfigError as error:
        fail(prog, str(error))


def read_options(kind: type[msgspec.Struct], parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """Only the values that were given, checked field by field; ConfigError names the wrong one."""
    given = vars(parser.parse_args(argv))
    path = given.pop("config", None)
    values = read_file(kind, Path(path)) if path is not None else {}
    for field in msgspec.structs.fields(kind):
        if field.name in given:
            values[field.name] = convert_value(given[field.name], field.type, option_name(field.name), strict=False)
    return values


def read_file(kind: type[msgspec.Struct], path: Path) -> dict[str, Any]:
    """The values in a TOML file; ConfigError names the file and the key."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key}{_did_you_mean(key, known)}")
        values[key] = convert_value(value, known[key].type, f"{path}: {key}", strict=True)
    return values


def build(kind: type[C], values: dict[str, Any]) -> C:
    """The Struct with these values, its own checks included; ConfigError names what is missing or wrong."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in values]
        words = f"{option_name(missing[0])} must be given" if missing else str(error)
        raise ConfigError(words) from None


def convert_value(value: Any, kind: Any, label: str, strict: bool) -> Any:
    """The value as this type; not strict also reads numbers and booleans from text. ConfigError starts with label."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {value!r} is not accepted: {_expectation(kind) or error}") from None


def make_parser(kind: type[msgspec.Struct], prog: str, description: str | None = None) -> argparse.ArgumentParser:
    """Options for every field of the Struct, each with its description and default, and `--config`.

    Those named test_* stand last, under a heading of their own.
    """
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML file with the same keys")
    for_tests = parser.add_argument_group("for tests, which break something on purpose")
    for field in msgspec.structs.fields(kind):
        group = for_tests if field.name.startswith(TEST_PREFIX) else parser
        plain, text = _plain_type(field.type)
        help_text = f"{text} (default: {_default_text(field)})".replace("%", "%%")
        if plain is bool:
            action: Any = argparse.BooleanOptionalAction
            group.add_argument(option_name(field.name), action=action, default=argparse.SUPPRESS, help=help_text)
        elif get_origin(plain) in (list, tuple):
            group.add_argument(
                option_name(field.name),
                action="extend",
                nargs="+",
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=f"{help_text}; one or more",
            )
        else:
            group.add_argument(
                option_name(field.name), metavar=_metavar(plain), default=argparse.SUPPRESS, help=help_text
            )
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage of dozens of options would hide it."""

    def error(self, message: str) -> NoReturn:
        fail(self.prog, f"{message}; `{self.prog} --help` shows the options")


def option_name(field: str) -> str:
    """`max_num_seqs` as `--max-num-seqs`."""
    return "--" + field.replace("_", "-")


def fail(prog: str, message: str) -> NoReturn:
    """One line on stderr and exit status 2."""
    sys.stderr.write(f"{prog}: {message}\n")
    raise SystemExit(2)


def _plain_type(kind: Any) -> tuple[Any, str]:
    """The type without Annotated and None, and its description."""
    text = ""
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        text = next((note.description for note in notes if isinstance(note, msgspec.Meta) and note.description), "")
    if get_origin(kind) in (Union, types.UnionType):
        rest = [_plain_type(part) for part in get_args(kind) if part is not type(None)]
        text = text or rest[0][1]
        kind = rest[0][0]
    return kind, text


def _expectation(kind: Any) -> str:
    """What a field wants in words: its choices, or what its Meta says (extra={"expects": ...})."""
    for note in getattr(kind, "__metadata__", ()):
        if isinstance(note, msgspec.Meta) and note.extra and "expects" in note.extra:
            return f"expected {note.extra['expects']}"
    plain, _ = _plain_type(kind)
    if get_origin(plain) is Literal:
        return f"expected one of {', '.join(str(choice) for choice in get_args(plain))}"
    if get_origin(plain) in (list, tuple) and get_origin(get_args(plain)[0]) is Literal:
        return f"expected some of {', '.join(str(choice) for choice in get_args(get_args(plain)[0]))}"
    return ""


def _metavar(plain: Any) -> str:
    if get_origin(plain) is Literal:
        return "|".join(str(choice) for choice in get_args(plain))
    names = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
    return names.get(plain, "VALUE")


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "none, must be given"
    if value in (None, "", [], ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
