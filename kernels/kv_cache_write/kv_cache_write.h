// One token's keys and values into the packed cache (kernels/paged_attention/packed_cache.h).
//
// A key's pairs of neighbours go to head_dim / 2 places 64 bytes apart, a value's elements to every other element of a
// row. Nothing beside them is read or rewritten: the token next to this one may be written by another thread.
#pragma once
#include "kernels/native/simd.h"
#include "kernels/paged_attention/packed_cache.h"

namespace tokenbus {

static inline void write_key_head(const bf16* key, bf16* tile, int lane, int head_dim) {
  for (int d = 0; d < head_dim; d += 2) memcpy(tile + d * kTileTokens + 2 * lane, key + d, 4);
}

static inline void write_value_head(const bf16* value, bf16* tile, int lane, int head_dim) {
  bf16* row = tile + (lane / 2) * 2 * head_dim;
  const int half = lane % 2;
#ifdef __AVX512BW__
  const __mmask32 written = half ? 0xaaaaaaaa : 0x55555555;
  for (int d = 0; d < head_dim; d += 16) {
    const u32x16 wide = __builtin_convertvector(load<bf16x16>(value + d), u32x16);
    _mm512_mask_storeu_epi16(row + 2 * d, written, (__m512i)(wide << (16 * half)));
  }
#else
  for (int d = 0; d < head_dim; d++) row[2 * d + half] = value[d];
#endif
}

// key, value: the token's heads [K][head_dim]; key_cache, value_cache: one layer's. slot: block * block_size + offset,
// or -1 for a token that is not kept. Any thread may write any token, as long as no slot is written twice.
static inline void kv_cache_write_token(const CacheShape& shape, const bf16* key, const bf16* value, bf16* key_cache,
                                        bf16* value_cache, int64_t slot) {
  if (slot < 0) return;
  const int64_t block = slot / shape.block_size;
  const int offset = static_cast<int>(slot % shape.block_size), lane = offset % kTileTokens;
  for (int head = 0; head < shape.num_kv_heads; head++) {
    const size_t tile = shape.tile(block, head, offset - lane);
    write_key_head(key + head * shape.head_dim, key_cache + tile, lane, shape.head_dim);
    write_value_head(value + head * shape.head_dim, value_cache + tile, lane, shape.head_dim);
  }
}

}  // namespace tokenbus
