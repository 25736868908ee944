"""What can be wrong with a model, each with the file and the reason in its message."""

from pathlib import Path


class ModelError(Exception):
    """A model that cannot be added, opened or read. The message is fit for the user, on one line."""


class ModelNotFound(ModelError):
    """No such model, or no such version of it."""


class BadModelFile(ModelError):
    """A file of a model that is not what it must be.

    file: the file at fault; reason: what is wrong with it.
    """

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class UnsupportedModel(BadModelFile):
    """A sound file of a kind that this release does not run (architecture, RoPE type, quantisation)."""


class ChecksumMismatch(BadModelFile):
    """A file of the repository whose size or SHA-256 differs from its manifest."""
