"""Options of `tokenbus up`: the node's own, and every option that any of its services has.

A service's option is declared once, in that service's config.py; here it is offered, checked and handed to each service
that knows it. So the node's help is complete and cannot go stale.
"""

import importlib
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from deploy.node.nats_server import SYNC_INTERVAL_EXPECTS, SYNC_INTERVAL_PATTERN
from shared.config import NATS_URL_EXPECTS, NATS_URL_PATTERN, NatsIdentity, ServiceConfig, build

# Start order does not matter: each service waits for what it needs. This is the order of the drain: first nothing new
# comes in, then what runs is finished, then its text is delivered.
DRAIN_ORDER = ("gateway", "tokenizer", "worker", "scheduler", "detokenizer")
DEFAULT_MODEL = "smollm2-135m"

# Set by the node for each process; not options of `up`.
_PER_PROCESS = (
    "nats",
    "name",
    "health_host",
    "health_port",
    "drain_timeout_s",
    "listen_fd",
    *NatsIdentity.__struct_fields__,
)


class NodeConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What concerns the node itself."""

    host: Annotated[str, msgspec.Meta(description="address of the HTTP API", min_length=1)] = "127.0.0.1"
    port: Annotated[
        int,
        msgspec.Meta(
            description="its port, shared by all gateways; 0: any free one; gateway number i > 0 also has port + i",
            ge=0,
            le=65535,
        ),
    ] = 8000
    data_dir: Annotated[
        str,
        msgspec.Meta(description="folder of logs, pids, URLs and the log's store; none: $XDG_DATA_HOME/tokenbus/node"),
    ] = ""
    nats: Annotated[
        str,
        msgspec.Meta(
            description="URL of a NATS server that is there already, or URLs of a cluster with commas; none: start one",
            pattern=rf"^$|{NATS_URL_PATTERN}",
            extra=NATS_URL_EXPECTS,
        ),
    ] = ""
    nats_credentials: Annotated[
        str,
        msgspec.Meta(description="folder with each service's credentials for the server at --nats; none: no sign-in"),
    ] = ""
    secure: Annotated[
        bool,
        msgspec.Meta(
            description="nats-server with TLS and an identity and permissions for each service (docs/security.md)"
        ),
    ] = False
    nats_sync_interval: Annotated[
        str,
        msgspec.Meta(
            description='how often nats-server syncs the log to disk, e.g. "10s"; "always" survives power loss',
            pattern=SYNC_INTERVAL_PATTERN,
            extra=SYNC_INTERVAL_EXPECTS,
        ),
    ] = "2m"
    model: Annotated[str, msgspec.Meta(description="model to serve, added if absent", min_length=1)] = DEFAULT_MODEL
    gateways: Annotated[int, msgspec.Meta(description="number of gateway processes", ge=1, le=64)] = 1
    tokenizers: Annotated[int, msgspec.Meta(description="number of tokenizer processes", ge=1, le=64)] = 1
    schedulers: Annotated[int, msgspec.Meta(description="number of schedulers: one leads", ge=1, le=8)] = 1
    workers: Annotated[
        int, msgspec.Meta(description="number of worker processes; 0: one from elsewhere must join", ge=0, le=64)
    ] = 1
    detokenizers: Annotated[int, msgspec.Meta(description="number of detokenizer processes", ge=1, le=64)] = 1
    ready_timeout_s: Annotated[float, msgspec.Meta(description="seconds until all must be ready", gt=0)] = 300.0
    drain_timeout_s: Annotated[
        float, msgspec.Meta(description="seconds for running requests to finish at a stop", gt=0, le=3600)
    ] = 15.0

    def count(self, service: str) -> int:
        """How many processes of this service run."""
        number: int = getattr(self, f"{service}s")
        return number


def service_config(service: str) -> type[ServiceConfig]:
    """The configuration type of a service; its module is light (no torch)."""
    module = importlib.import_module(f"services.{service}.config")
    kind: type[ServiceConfig] = getattr(module, f"{service.capitalize()}Config")
    return kind


def node_config() -> type[NodeConfig]:
    """NodeConfig with the options of all services appended."""
    own = {field.name for field in msgspec.structs.fields(NodeConfig)}
    found: dict[str, tuple[str, Any, Any]] = {}
    for service in DRAIN_ORDER:
        for field in msgspec.structs.fields(service_config(service)):
            if field.name in own or field.name in found or field.name in _PER_PROCESS:
                continue
            found[field.name] = (field.name, field.type, _default(field))
    kind = msgspec.defstruct(
        "UpConfig", list(found.values()), bases=(NodeConfig,), kw_only=True, frozen=True, forbid_unknown_fields=True
    )
    return cast("type[NodeConfig]", kind)


def service_values(service: str, node: NodeConfig, given: dict[str, Any]) -> dict[str, Any]:
    """Values for one service: those of the given ones that it knows, its model, and the gateway's address.

    Raises ConfigError when the service itself does not accept them.
    """
    kind = service_config(service)
    known = {field.name for field in msgspec.structs.fields(kind)} - set(_PER_PROCESS)
    values = {name: value for name, value in given.items() if name in known}
    if "model" in known:
        values["model"] = node.model
    if service == "gateway":
        values |= {"host": node.host, "port": node.port}
    else:
        values = {name: value for name, value in values.items() if name not in ("host", "port")}
    build(kind, values)
    return values


def to_toml(values: dict[str, Any]) -> str:
    """A flat TOML file of strings, numbers, booleans and lists of them; None values are left out."""
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in values.items() if value is not None)


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Path):
        value = str(value)
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default
