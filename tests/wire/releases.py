"""The releases that are frozen here, and today's structs by name."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tests.wire.generate import kinds

HERE = Path(__file__).parent


@dataclass(slots=True, frozen=True)
class Release:
    """name: such as "0.1". frozen: messages.json. schema: its structs as they were."""

    name: str
    frozen: dict[str, Any]
    schema: ModuleType

    def structs(self) -> dict[str, type[msgspec.Struct]]:
        """Its structs by name."""
        return {n: m for n, m in vars(self.schema).items() if isinstance(m, type) and issubclass(m, msgspec.Struct)}


@cache
def releases() -> tuple[Release, ...]:
    """All frozen releases, oldest first."""
    found = []
    for folder in HERE.glob("release_*"):
        frozen = json.loads((folder / "messages.json").read_text("utf-8"))
        schema = import_module(f"tests.wire.{folder.name}.schema")
        found.append(Release(folder.name.removeprefix("release_").replace("_", "."), frozen, schema))
    return tuple(sorted(found, key=lambda release: [int(part) for part in release.name.split(".")]))


@cache
def current_structs() -> dict[str, type[msgspec.Struct]]:
    """Today's structs of the wire by name."""
    return {kind.__name__: kind for kind in kinds()}
