"""Stop strings: where one is, and how much text must wait because one may have begun."""

from collections.abc import Sequence


def find_stop(window: str, seen: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """The first stop string in window that ends beyond the first `seen` characters: its index and itself.

    Of several the one that begins first counts, then the one named first.
    """
    found: tuple[int, str] | None = None
    for stop in stops:
        index = window.find(stop, max(0, seen - len(stop) + 1))
        if index >= 0 and (found is None or index < found[0]):
            found = (index, stop)
    return found


def num_held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of text with which a stop string may begin; shorter than that stop string."""
    held = 0
    for stop in stops:
        index = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while index >= 0 and len(text) - index > held:
            if stop.startswith(text[index:]):
                held = len(text) - index
                break
            index = text.find(stop[0], index + 1)
    return held
