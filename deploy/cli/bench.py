"""`tokenbus bench`: measurements of this system and of others. They live in the package `bench`."""

from bench.command import main

__all__ = ["main"]
