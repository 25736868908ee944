"""What a user of the benchmarks can do something about."""


class BenchError(ValueError):
    """A wish that cannot be fulfilled; the message says which and why, in one line."""
