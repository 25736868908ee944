"""What can be wrong with a model, each with the file and the reason in its message."""

from pathlib import Path


class ModelError(Exception):
    """A model that cannot be added, opened or read.

    The message is fit for the user: one line, with whatever a hostile file could draw on a terminal shown as escapes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ModelNotFound(ModelError):
    """No such model, or no such version of it."""


class NoSoundVersion(ModelError):
    """A model of which every version is damaged or cannot be run."""


class BadModelFile(ModelError):
    """A file of a model that is not what it must be.

    file: the file at fault; reason: what is wrong with it.
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = one_line(reason)


class UnsupportedModel(BadModelFile):
    """A sound file of a kind that this release does not run (architecture, RoPE type, quantisation)."""


class ChecksumMismatch(BadModelFile):
    """A file of the repository whose size or SHA-256 differs from its manifest."""


def one_line(text: str) -> str:
    """The text with every character that is not printable as its escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
