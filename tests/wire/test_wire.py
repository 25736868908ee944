"""Protocol version N and N-1 interoperate: each release reads the other's bytes (docs/adr/0008-compatibility.md)."""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from shared.log import snapshot
from shared.log.fold import Fold
from shared.messages.codec import SUPPORTED_VERSIONS, WireError, client_decoder, decoder, encode
from shared.messages.pipeline import PROTOCOL_VERSION, Done, End, EpochStart, Fence, Reader, Rows, StepPlan
from tests.wire.freeze import ROOT
from tests.wire.generate import MODULES
from tests.wire.releases import Release, current_structs, releases
from tests.wire.samples import Sampler, plain, variants
from tests.wire.schema_source import schema_source

RELEASES = pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
CURRENT = pytest.mark.parametrize("kind", current_structs().values(), ids=lambda kind: kind.__name__)


def holds(known: Any, value: Any) -> bool:
    """Whether a plain value has all that another one has; structs may have more fields."""
    if isinstance(known, dict) and isinstance(value, dict):
        return all(name in value and holds(known[name], value[name]) for name in known)
    if isinstance(known, list) and isinstance(value, list):
        return len(known) == len(value) and all(map(holds, known, value))
    return bool(known == value and type(known) is type(value))


def fields_of(kind: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}


def default_of(field: inspect.Field) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def grown(value: Any) -> Any:
    """What a later release would send for the same value: every struct of it has a field more."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        parts = {name: grown(getattr(value, name)) for name in value.__struct_fields__}
        if config.array_like:
            return [*([config.tag] if config.tag else []), *parts.values(), {"new in": ["a later release"]}]
        names = dict(zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True))
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return tag | {names[name]: part for name, part in parts.items()} | {"new_field": [1]}
    if isinstance(value, list | tuple):
        return [grown(item) for item in value]
    if isinstance(value, dict):
        return {key: grown(item) for key, item in value.items()}
    return value


# ---- what was sent yesterday is read today ------------------------------------------------------------------------


@RELEASES
def test_bytes_of_older_releases_are_read(release: Release) -> None:
    structs = current_structs()
    for entry in release.frozen["messages"]:
        where = f"{entry['kind']} {entry['variant']}"
        message = decoder(structs[entry["kind"]])(bytes.fromhex(entry["msgpack"]))
        assert holds(entry["value"], plain(message)), where
        for name in fields_of(type(message)).keys() - entry["value"].keys():
            assert getattr(message, name) == default_of(fields_of(type(message))[name]), f"{where}: {name}"
        if "json" in entry:
            assert client_decoder(structs[entry["kind"]])(entry["json"].encode()) == (message, "json"), where


@RELEASES
def test_logs_of_older_releases_fold_to_the_same(release: Release) -> None:
    fold = Fold()
    for number, record in enumerate(release.frozen["log"], 1):
        fold.apply(record["kind"], bytes.fromhex(record["msgpack"]), number, record["clock_ns"])
    assert holds(release.frozen["snapshot"]["value"], plain(snapshot.capture(fold)))
    assert fold.counts["malformed"] == 0


@RELEASES
def test_snapshots_of_older_releases_are_restored(release: Release) -> None:
    fold = Fold()
    snapshot.restore(fold, bytes.fromhex(release.frozen["snapshot"]["msgpack"]))
    assert holds(release.frozen["snapshot"]["value"], plain(snapshot.capture(fold)))
    assert len(fold.requests) == 3 and len(fold.tombstones) == 1


# ---- what is sent today was readable yesterday --------------------------------------------------------------------


@RELEASES
def test_todays_messages_are_read_by_older_releases(release: Release) -> None:
    for name, old in release.structs().items():
        for variant, message in variants(current_structs()[name]).items():
            read = decoder(old)(encode(message))
            assert holds(plain(read), plain(message)), f"{name} {variant}"


def test_records_that_an_older_release_does_not_know_are_malformed_to_it_and_nothing_worse() -> None:
    (old,) = [release.schema for release in releases() if release.name == "0.1"]
    reader = Reader(request_id="a" * 32, gateway="g1", reads=True)
    with pytest.raises(WireError, match="reader"):
        decoder(old.End | old.Done)(encode(reader))


# ---- what is sent tomorrow is readable today ----------------------------------------------------------------------


@CURRENT
def test_unknown_fields_are_passed_over(kind: type[msgspec.Struct]) -> None:
    message = Sampler().full(kind, {})
    assert decoder(kind)(encode(grown(message))) == message


def test_a_later_releases_record_is_folded_with_what_is_known_of_it() -> None:
    fold = Fold()
    fold.apply("fence", encode(grown(Fence(kind="takeover", leader="s1"))), 1, 1)
    fold.apply("out", encode(grown(Rows(worker="w1", epoch=1, step=1))), 2, 2)
    assert (fold.leader, fold.folded_step("w1"), fold.counts["malformed"]) == ("s1", 1, 0)


def test_a_later_releases_kinds_of_record_are_counted_and_passed_over() -> None:
    fold = Fold()
    unknown = msgspec.msgpack.encode(["receipt", PROTOCOL_VERSION, "a" * 32])
    assert fold.apply("end", unknown, 1, 1).record is None
    assert fold.apply("receipt", unknown, 2, 2).record is None
    fold.apply("end", encode(End(request_id="a" * 32, reason="cancel")), 3, 3)
    assert (fold.seq, fold.counts["malformed"], len(fold.tombstones)) == (3, 2, 1)


@pytest.mark.parametrize("kind", [Rows, EpochStart | StepPlan, End | Done | Reader], ids=str)
@pytest.mark.parametrize("version", range(-1, PROTOCOL_VERSION + 4))
def test_the_version_before_and_the_next_one_are_read_and_no_other(kind: Any, version: int) -> None:
    message = {
        Rows: Rows(v=version, worker="w1", epoch=1, step=1),
        EpochStart | StepPlan: EpochStart(v=version, epoch=1),
        End | Done | Reader: End(v=version, request_id="a" * 32, reason="cancel"),
    }[kind]
    if version in {PROTOCOL_VERSION - 1, PROTOCOL_VERSION, PROTOCOL_VERSION + 1} - {0}:
        assert version in SUPPORTED_VERSIONS
        assert decoder(kind)(encode(message)) == message
    else:
        with pytest.raises(WireError, match=f"version {version}"):
            decoder(kind)(encode(message))


# ---- the rules that make it so ------------------------------------------------------------------------------------


@RELEASES
def test_fields_are_only_appended_and_have_defaults(release: Release) -> None:
    for name, old in release.structs().items():
        new = current_structs()[name]
        before, after = old.__struct_config__, new.__struct_config__
        assert (before.array_like, before.tag, before.tag_field) == (after.array_like, after.tag, after.tag_field), name
        num_old = len(old.__struct_encode_fields__)
        if after.array_like:
            assert new.__struct_encode_fields__[:num_old] == old.__struct_encode_fields__, name
        assert set(old.__struct_encode_fields__) <= set(new.__struct_encode_fields__), name
        for field in fields_of(new).values():
            was_required = field.encode_name in old.__struct_encode_fields__ and field.required
            assert was_required or not field.required, f"{name}.{field.name} needs a default"


@RELEASES
def test_values_of_a_known_field_are_those_that_older_releases_know(release: Release) -> None:
    """A reader refuses the whole message for a value that it does not know: new meanings need fields or records."""
    for name, old in release.structs().items():
        for field in fields_of(old).values():
            if isinstance(field.type, inspect.LiteralType):
                today = fields_of(current_structs()[name])[field.name].type
                assert isinstance(today, inspect.LiteralType)
                assert set(today.values) == set(field.type.values), f"{name}.{field.name}"


def test_internal_messages_are_arrays_and_those_of_clients_are_maps() -> None:
    maps = {name for name, kind in current_structs().items() if not kind.__struct_config__.array_like}
    assert maps == {
        *("GenerateRequest", "Accepted", "Refused", "ErrorBody", "CancelRequest", "Cancelled", "AttachRequest"),
        *("ClientTokenLogprob", "ClientChoice", "ClientDelta", "ClientEndChoice", "ClientUsage", "ClientEnd"),
        "ClientError",
    }


def test_the_bare_schema_is_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What freeze writes as schema.py defines the same structs as the code that it is taken from."""
    sources = [(ROOT / f"{name.replace('.', '/')}.py").read_text("utf-8") for name in MODULES]
    (tmp_path / "bare_schema.py").write_text(schema_source("now", sources), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    bare = vars(import_module("bare_schema"))
    for name, kind in current_structs().items():
        message = Sampler().full(kind, {})
        assert plain(decoder(bare[name])(encode(message))) == plain(message)
        assert encode(Sampler().full(bare[name], {})) == encode(message)
