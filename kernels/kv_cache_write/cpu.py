"""KV cache write on the CPU, in torch."""

from torch import Tensor


def kv_cache_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """key, value: [T, K, D] of the cache's dtype; key_cache, value_cache: contiguous [N, B, K, D], written in place.

    slot_mapping: int64 [T]; -1 skips the token. No slot may appear twice. Raises IndexError on a slot beyond the cache.
    """
    written = slot_mapping >= 0
    if not written.all():
        slot_mapping, key, value = slot_mapping[written], key[written], value[written]
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)
