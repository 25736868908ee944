"""Names of KV blocks by content.

A full block is named by a chained SHA-256 over everything up to its last token, keyed by the cache key (tenant salt,
model, version, adapter): equal names mean equal KV contents. Scheduler and worker compute the same names, which lets
a new leader find what a worker still holds.
"""

import hashlib

HASH_BYTES = 16


def root_hash(cache_key: str) -> bytes:
    """Parent of a sequence's first block."""
    return hashlib.sha256(b"tokenbus\0" + cache_key.encode()).digest()[:HASH_BYTES]


def block_hash(parent: bytes, token_ids: bytes) -> bytes:
    """Name of a full block, from its parent's name and its own token ids (int32 bytes)."""
    return hashlib.sha256(parent + token_ids).digest()[:HASH_BYTES]
