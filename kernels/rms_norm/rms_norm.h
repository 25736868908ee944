// RMSNorm of a row: x / sqrt(mean(x^2) + eps) * weight, in float32, rounded once.
//
// The squares are added in 16 lanes, element i in lane i % 16, and the lanes in pairs: a row's result depends on nothing
// but the row. Rows are short and in the cache, so one pass for the sum and one for the product cost little.
#pragma once
#include <cmath>

#include "kernels/native/simd.h"

namespace tokenbus {

// 1 / sqrt(mean(x^2) + eps) of n elements, which at(i) gives 16 at a time and one(i) singly.
template <class At, class One>
static inline float inverse_rms(At&& at, One&& one, int n, float eps) {
  f32x16 squares = {}, more = {};
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    const f32x16 first = at(i), second = at(i + 16);
    squares += first * first;
    more += second * second;
  }
  for (; i + 16 <= n; i += 16) squares += at(i) * at(i);
  float sum = sum_of(squares + more);
  for (; i < n; i++) sum += one(i) * one(i);
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

// residual: [n], weight: [n]; out: [n].
static inline void rms_norm_row(const float* residual, const float* weight, float eps, int n, bf16* out) {
  const float scale = inverse_rms([&](int i) { return load<f32x16>(residual + i); }, [&](int i) { return residual[i]; },
                                  n, eps);
  int i = 0;
  for (; i + 16 <= n; i += 16) store_bf16(out + i, load<f32x16>(residual + i) * scale * load<f32x16>(weight + i));
  for (; i < n; i++) out[i] = to_bf16(residual[i] * scale * weight[i]);
}

// One head of a token's queries or keys, [head_dim], in place; weight: [head_dim] (Qwen3 normalises them so).
static inline void rms_norm_head(bf16* head, const float* weight, float eps, int head_dim) {
  const float scale =
      inverse_rms([&](int i) { return load_bf16(head + i); }, [&](int i) { return to_float(head[i]); }, head_dim, eps);
  int i = 0;
  for (; i + 16 <= head_dim; i += 16) store_bf16(head + i, load_bf16(head + i) * scale * load<f32x16>(weight + i));
  for (; i < head_dim; i++) head[i] = to_bf16(to_float(head[i]) * scale * weight[i]);
}

}  // namespace tokenbus
