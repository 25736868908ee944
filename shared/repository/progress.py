"""How the slow parts of the repository tell how far they are."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called often with (what is going on, bytes done, bytes in all)."""


def no_progress(stage: str, done_bytes: int, total_bytes: int) -> None:
    """A Progress that shows nothing."""


class ByteCounter:
    """Sums up bytes and reports them. stage: what is going on; total_bytes: how many there will be."""

    def __init__(self, stage: str, total_bytes: int, progress: Progress) -> None:
        self.stage = stage
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self.progress = progress

    def advance(self, num_bytes: int) -> None:
        """num_bytes more are done."""
        self.done_bytes += num_bytes
        self.progress(self.stage, self.done_bytes, self.total_bytes)
