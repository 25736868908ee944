"""Options of a node reach the services that know them, unchanged."""

import tomllib

import msgspec
import pytest

from deploy.node.config import DRAIN_ORDER, node_config, service_config, service_values, to_toml
from shared.config import ConfigError, NatsIdentity, build, make_parser, read_options


def up(*argv: str) -> tuple[msgspec.Struct, dict[str, object]]:
    kind = node_config()
    given = read_options(kind, make_parser(kind, "up"), list(argv))
    return build(kind, given), given


def test_every_option_of_every_service_is_an_option_of_up() -> None:
    names = {field.name for field in msgspec.structs.fields(node_config())}
    for service in DRAIN_ORDER:
        missing = {field.name for field in msgspec.structs.fields(service_config(service))} - names
        assert missing <= {"name", "health_host", "health_port", "listen_fd", *NatsIdentity.__struct_fields__}, service


def test_shared_options_have_one_default() -> None:
    """An option that several services have must mean the same to all, or the help of `up` would lie."""
    defaults: dict[str, object] = {}
    for service in DRAIN_ORDER:
        for field in msgspec.structs.fields(service_config(service)):
            if field.default is not msgspec.NODEFAULT:
                assert defaults.setdefault(field.name, field.default) == field.default, (service, field.name)


def test_values_reach_the_services_that_know_them() -> None:
    config, given = up(
        "--engine", "fake", "--fake-step-ms", "2", "--max-num-seqs", "7", "--port", "9999", "--host", "::1"
    )
    worker = service_values("worker", config, given)
    assert (worker["engine"], worker["fake_step_ms"], worker["max_num_seqs"]) == ("fake", 2.0, 7)
    assert worker["model"] == "smollm2-135m"
    assert "port" not in worker
    gateway = service_values("gateway", config, given)
    assert (gateway["host"], gateway["port"]) == ("::1", 9999)
    assert "engine" not in service_values("scheduler", config, given)


def test_model_names_reach_every_service_that_has_a_model() -> None:
    config, given = up("--model", "tiny", "--served-model-name", "a.b/c", "second")
    for service in DRAIN_ORDER:
        known = {field.name for field in msgspec.structs.fields(service_config(service))}
        values = service_values(service, config, given)
        assert values.get("model", "tiny") == "tiny"
        assert ("served_model_name" in values) == ("served_model_name" in known)
        assert list(values.get("served_model_name", ["a.b/c", "second"])) == ["a.b/c", "second"]


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "70000"],
        ["--workers", "-1"],
        ["--nats", "nowhere"],
        ["--engine", "gpu"],
        ["--nats-sync-interval", "x"],
    ],
)
def test_bad_values_name_the_option(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=argv[0]):
        up(*argv)


def test_toml_reads_back_as_it_was() -> None:
    values = {"a": 'q"uo\\te\n\x7f\u0000é', "b": 1, "c": 0.1, "d": True, "e": ["x", "y"], "f": None, "g": 1e300}
    assert tomllib.loads(to_toml(values)) == {key: value for key, value in values.items() if value is not None}
