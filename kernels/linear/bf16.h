// bfloat16 weights: [panels][n_in / 2][32 columns][2], n_in even. Two neighbours of a column lie together, as the dot
// product of pairs wants them, and the tiles of AMX too (bf16_amx.h).
//
// A block of rows keeps its sums in registers (rows x 2 of them) while the panel passes by once: a panel comes from
// memory for the first block and from the cache for the others. Single rows run at the speed of memory, many at that of
// the multipliers.
#pragma once
#ifndef __AVX512BF16__
#include "kernels/linear/bf16_avx2.h"
#else
#include <algorithm>

#include "kernels/linear/linear.h"
#include "kernels/linear/row_blocks.h"

namespace tokenbus {

constexpr int kBf16BlockRows = 12;

// sums: [kRows][32]. next: asked for at half the pace of the weights, or null where the block is the panel's only one.
template <int kRows, bool kIsOnly>
static inline void bf16_block(const bf16* weights, const bf16* rows, int n_in, const bf16* next, float* sums) {
  f32x16 total[kRows][2] = {};
  for (int k = 0; k < n_in; k += 2) {
    if constexpr (!kIsOnly)
      _mm_prefetch(next + k / 2 * kPanel, _MM_HINT_T0);
    else if constexpr (kRows > 2)
      fetch_ahead<128>(weights + k * kPanel);
    const i32x16 first = load<i32x16>(weights + k * kPanel), second = load<i32x16>(weights + k * kPanel + 32);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      const i32x16 pair = broadcast_bits(rows + static_cast<size_t>(r) * n_in + k);
      total[r][0] = dot_bf16(total[r][0], first, pair);
      total[r][1] = dot_bf16(total[r][1], second, pair);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++) {
    store(sums + r * kPanel, total[r][0]);
    store(sums + r * kPanel + 16, total[r][1]);
  }
}

template <int kRows, bool kIsOnly>
static void bf16_rest(const bf16* weights, const bf16* rows, int n_in, int num_rows, const bf16* next, float* sums) {
  if (num_rows == kRows)
    bf16_block<kRows, kIsOnly>(weights, rows, n_in, next, sums);
  else if constexpr (kRows > 1)
    bf16_rest<kRows - 1, kIsOnly>(weights, rows, n_in, num_rows, next, sums);
}

// sums: [last_row - first_row][32], like compute_panel's.
//
// Of several blocks that pass by a panel only the first waits for memory. So each of the first two asks for a half of the
// next panel, which the same thread most likely takes next: memory is as busy in the second pass as in the first (a step's
// products of 16 rows took 6.3 ms without this, and 5.4 with it; Zen 5, two cores).
static void bf16_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
  const size_t panel_size = static_cast<size_t>(linear.n_in) * kPanel;
  const bf16* weights = static_cast<const bf16*>(linear.weight) + panel * panel_size;
  for_each_block(last_row - first_row, kBf16BlockRows, [&](RowBlock block) __attribute__((always_inline)) {
    const bf16* inputs = rows.values + static_cast<size_t>(first_row + block.row) * linear.n_in;
    float* block_sums = sums + block.row * kPanel;
    if (block.is_only)
      bf16_rest<kBf16BlockRows, true>(weights, inputs, linear.n_in, block.num_rows, nullptr, block_sums);
    else
      bf16_rest<kBf16BlockRows, false>(weights, inputs, linear.n_in, block.num_rows,
                                       weights + panel_size + std::min(block.index, 1) * panel_size / 2, block_sums);
  });
}

}  // namespace tokenbus
#endif
