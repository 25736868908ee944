// Attention of up to kBlockRows rows over one part of the keys.
#pragma once
#include <array>
#include <utility>

#include "kernels/paged_attention/products.h"

namespace tokenbus {
constexpr float kLog2E = 1.44269504f;

static inline float highest_of(f32x16 value) {
  value = max(value, __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  value = max(value, __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  value = max(value, __builtin_shufflevector(value, value, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
  return value[0] > value[1] ? value[0] : value[1];
}

// Turns scratch.scores into scratch.weights, relative to the part's greatest score, and merges the weights' sums.
template <int kRows>
static inline Rescaling weigh(const PartRows& part, float scale, AttentionScratch& scratch, const RowStates& states) {
  float greatest[kRows];
  f32x16 sums[kRows];
  for (int row = 0; row < kRows; row++) {
    const float scaled = highest_of(scratch.highest[row]) * scale;
    greatest[row] = scaled > kNoScore ? scaled : kNoScore;
    sums[row] = f32x16{};
    for (int tile = part.first_tile; tile < part.last_tile; tile++) {
      const f32x16 scores = load<f32x16>(scratch.scores[row] + tile * kTileTokens);
      const f32x16 weights = power_of_two(fused(scores, broadcast(scale), broadcast(-greatest[row])));
      sums[row] += weights;
      store_bf16(scratch.weights[row] + tile * kTileTokens, weights);
    }
  }
  const Rescaling rescaling(states.greatest, greatest, kRows);
  for (int row = 0; row < kRows; row++) states.sums[row] = rescaling.of(row, states.sums[row], sums[row]);
  return rescaling;
}

template <int kRows>
static void attend_rows(const PartRows& part, int head_dim, float scale, AttentionScratch& scratch, const RowStates& states) {
  score<kRows>(part, head_dim, scratch);
  const Rescaling rescaling = weigh<kRows>(part, scale, scratch, states);
  sum_values<kRows, value_columns(kRows)>(part, 0, head_dim, scratch, rescaling, states.outputs);
}

using AttendRows = void (*)(const PartRows&, int, float, AttentionScratch&, const RowStates&);

template <int... kIndex>
constexpr std::array<AttendRows, sizeof...(kIndex)> attend_rows_for(std::integer_sequence<int, kIndex...>) {
  return {attend_rows<kIndex + 1>...};
}

constexpr auto kAttendRows = attend_rows_for(std::make_integer_sequence<int, kBlockRows>{});

}  // namespace tokenbus
