// Attention of up to kBlockRows rows over one part of the keys.
#pragma once
#include <array>
#include <utility>

#include "kernels/paged_attention/products.h"

namespace tokenbus {
constexpr float kLog2E = 1.44269504f;

static inline float highest_of(f32x16 value) {
  const auto greater = [](f32x8 a, f32x8 b) { return a > b ? a : b; };
  f32x8 eight = greater(first_eight(value), last_eight(value));
  eight = greater(eight, __builtin_shufflevector(eight, eight, 4, 5, 6, 7, 0, 1, 2, 3));
  eight = greater(eight, __builtin_shufflevector(eight, eight, 2, 3, 0, 1, 6, 7, 4, 5));
  return eight[0] > eight[1] ? eight[0] : eight[1];
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
      store_rounded(scratch.weights[row] + tile * kTileTokens, weights);
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
