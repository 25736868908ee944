"""Fields of a JSON object that nobody has checked yet."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.repository.errors import BadModelFile, UnsupportedModel

MAX_DIMENSION = 1 << 24


class Fields:
    """Typed access to a JSON object; an absent key and null mean the default.

    path: what the object's fields are named after in messages, e.g. "quantization_config.".
    """

    def __init__(self, document: Mapping[str, Any], file: Path, path: str = "") -> None:
        self.document = document
        self.file = file
        self.path = path

    def _value(self, name: str, default: Any) -> Any:
        value = self.document.get(name)
        if value is not None:
            return value
        if default is None:
            raise BadModelFile(self.file, f"{self.path}{name} is missing")
        return default

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_DIMENSION) -> int:
        """An integer within bounds. Raises BadModelFile."""
        value = self._value(name, default)
        if type(value) is not int or not least <= value <= most:
            raise BadModelFile(
                self.file, f"{self.path}{name} must be an integer from {least} to {most}, not {shown(value)}"
            )
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A positive number. Raises BadModelFile."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise BadModelFile(self.file, f"{self.path}{name} must be a positive number, not {shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises BadModelFile."""
        value = self._value(name, default)
        if type(value) is not bool:
            raise BadModelFile(self.file, f"{self.path}{name} must be true or false, not {shown(value)}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string. Raises BadModelFile."""
        value = self._value(name, default)
        if type(value) is not str:
            raise BadModelFile(self.file, f"{self.path}{name} must be a string, not {shown(value)}")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object; empty where it is absent. Raises BadModelFile."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise BadModelFile(self.file, f"{self.path}{name} must be an object, not {shown(value)}")
        return value

    def section(self, name: str) -> "Fields":
        """The fields of an object within this one. Raises BadModelFile."""
        return Fields(self.mapping(name), self.file, f"{self.path}{name}.")

    def expect(self, name: str, default: Any, *supported: Any) -> Any:
        """One of the supported values. Raises UnsupportedModel, with all of them, for another one."""
        value = self._value(name, default)
        if not any(type(value) is type(item) and value == item for item in supported):
            known = ", ".join(json.dumps(item) for item in supported)
            raise UnsupportedModel(self.file, f"{self.path}{name} {shown(value)} is not supported; supported: {known}")
        return value

    def expect_none(self, *names: str) -> None:
        """Raises UnsupportedModel where one of these says anything."""
        for name in names:
            if self.document.get(name):
                value = shown(self.document[name])
                raise UnsupportedModel(self.file, f"{self.path}{name} is not supported; it is {value}")


def shown(value: Any) -> str:
    """A value for an error message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
