// Rotary position embedding of one token's heads, in place: each pair (x[i], x[i + D / 2]) turned in float32, rounded
// once.
#pragma once
#include "kernels/native/simd.h"

namespace tokenbus {

// heads: [num_heads][head_dim], queries and keys alike; cos_sin: [head_dim], the table's row at the token's position,
// the cosines of its D / 2 angles, then their sines. head_dim: even.
static inline void rope_heads(bf16* heads, int num_heads, int head_dim, const float* cos_sin) {
  const int half = head_dim / 2;
  const float* const sin = cos_sin + half;
  for (int head = 0; head < num_heads; head++) {
    bf16* const first = heads + head * head_dim;
    bf16* const second = first + half;
    int i = 0;
    for (; i + 16 <= half; i += 16) {
      const f32x16 x = load_bf16(first + i), y = load_bf16(second + i);
      const f32x16 c = load<f32x16>(cos_sin + i), s = load<f32x16>(sin + i);
      store_bf16(first + i, x * c - y * s);
      store_bf16(second + i, y * c + x * s);
    }
    for (; i < half; i++) {
      const float x = to_float(first[i]), y = to_float(second[i]);
      first[i] = to_bf16(x * cos_sin[i] - y * sin[i]);
      second[i] = to_bf16(y * cos_sin[i] + x * sin[i]);
    }
  }
}

}  // namespace tokenbus
