"""Seeds that follow from other values, so that a retry or another process finds the same (protocol rules 12, 16)."""

import hashlib

SEED_BITS = 63


def _hash(*parts: str) -> int:
    digest = hashlib.sha256("\0".join(("tokenbus seed", *parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> (64 - SEED_BITS)


def choice_seed(seed: int, choice: int) -> int:
    """Seed of one choice of a request, for any request seed (int64): 0 <= result < 2^63."""
    return _hash("choice", str(seed), str(choice))


def request_seed(request_id: str) -> int:
    """Seed of a request that names none: every retry carries the same request id. 0 <= result < 2^63."""
    return _hash("request", request_id)
