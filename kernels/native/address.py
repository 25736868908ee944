"""Where an array lies, for the C++ side."""

from typing import Any

from numpy.typing import NDArray


def address_of(array: NDArray[Any]) -> int:
    """Of its first element; the caller keeps the array."""
    return int(array.__array_interface__["data"][0])
