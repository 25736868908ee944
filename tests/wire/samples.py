"""Messages with every field filled, made from nothing but their types, and their values in plain form.

Runs under the code of any release (see generate), so it imports nothing of ours.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

MAX_DEPTH = 5


class Sampler:
    """Draws values that differ from each other, the same ones in each run."""

    def __init__(self) -> None:
        self._count = 0

    def full(self, kind: type[msgspec.Struct], fixed: dict[str, Any]) -> Any:
        """A message with a value of its own in each field; those in fixed are given."""
        return self._struct(inspect.type_info(kind), 0, fixed)

    def least(self, kind: type[msgspec.Struct]) -> Any:
        """A message with nothing but what has no default."""
        return self._struct(inspect.type_info(kind), 0, {}, only_required=True)

    def _struct(self, info: Any, depth: int, fixed: dict[str, Any], *, only_required: bool = False) -> Any:
        values = dict(fixed)
        for field in info.fields:
            wanted = field.required or not only_required
            if field.name not in values and wanted:
                values[field.name] = 1 if field.name == "v" else self._value(field.type, field.name, depth + 1)
        return info.cls(**values)

    def _value(self, info: Any, name: str, depth: int) -> Any:
        self._count += 1
        if isinstance(info, inspect.UnionType):
            info = next(one for one in info.types if not isinstance(one, inspect.NoneType))
        make = _SCALARS.get(type(info))
        return make(info, name, self._count) if make is not None else self._compound(info, name, depth)

    def _compound(self, info: Any, name: str, depth: int) -> Any:
        match info:
            case inspect.ListType() | inspect.VarTupleType():
                items = [self._value(info.item_type, name, depth) for _ in range(2)] if depth < MAX_DEPTH else []
                return items if isinstance(info, inspect.ListType) else tuple(items)
            case inspect.TupleType():
                return tuple(self._value(item, name, depth) for item in info.item_types)
            case inspect.DictType():
                return {self._value(info.key_type, name, depth): self._value(info.value_type, name, depth)}
            case inspect.StructType():
                return self._struct(info, depth, {})
        raise TypeError(f"no sample for {info}")


_SCALARS: dict[type, Callable[[Any, str, int], Any]] = {
    inspect.BoolType: lambda info, name, number: True,
    inspect.IntType: lambda info, name, number: max(info.ge or 0, 1) + number % 100,
    inspect.FloatType: lambda info, name, number: number + 0.5,
    inspect.StrType: lambda info, name, number: f"{name} {number}",
    inspect.BytesType: lambda info, name, number: number.to_bytes(8, "little"),
    inspect.LiteralType: lambda info, name, number: info.values[0],
    inspect.AnyType: lambda info, name, number: f"anything {number}",
}


def variants(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Messages of one kind by name: with all fields, with the least, and with each value of each Literal field."""
    sampler = Sampler()
    found = {"full": sampler.full(kind, {}), "least": sampler.least(kind)}
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if isinstance(field.type, inspect.LiteralType):
            for value in field.type.values:
                found[f"{field.name}={value}"] = sampler.full(kind, {field.name: value})
    return found


def plain(value: Any) -> Any:
    """A value as JSON holds it: structs by field name, bytes as hex, tuples as lists."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value
