"""Who goes first: by priority (a lower value is earlier), then by arrival."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

Key = tuple[int, int]


class Ordered(Protocol):
    """Anything with a place in the order. key: (priority, sequence id); ids grow with the log."""

    key: Key


T = TypeVar("T", bound=Ordered)

_by_key = attrgetter("key")


class Order(Generic[T]):
    """A sorted list. Adding and removing moves pointers behind the place (a memmove), finding it is a bisection.

    Iteration goes from first to last; removing the last one while iterating is safe, as with any list.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[T] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @property
    def last(self) -> T:
        """The one that is preempted first. IndexError if there is none."""
        return self._items[-1]

    def add(self, item: T) -> None:
        """Put the item in its place."""
        insort(self._items, item, key=_by_key)

    def remove(self, item: T) -> None:
        """Take the item out. ValueError if it is not there."""
        index = bisect_left(self._items, item.key, key=_by_key)
        if index == len(self._items) or self._items[index] is not item:
            raise ValueError(f"nothing with key {item.key} here")
        del self._items[index]

    def snapshot(self) -> list[T]:
        """A copy, for loops that add or remove."""
        return self._items.copy()
