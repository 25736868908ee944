"""What can be wrong with a dataset."""

from bench.errors import BenchError


class DatasetError(BenchError):
    """A dataset that cannot be used; the message names the file and why."""
