"""The CRC that each row carries of the prompt and output ids it was computed on (protocol rule 21).

Chained over int32 little-endian ids, so that hash(a + b) continues hash(a) with b.
"""

from zlib import crc32


def extend(prefix_hash: int, token_ids: bytes) -> int:
    """Prefix hash after more ids (int32 bytes); the empty prefix has hash 0."""
    return crc32(token_ids, prefix_hash)


def extend_by_one(prefix_hash: int, token_id: int) -> int:
    """Prefix hash after one more id."""
    return crc32(token_id.to_bytes(4, "little", signed=True), prefix_hash)
