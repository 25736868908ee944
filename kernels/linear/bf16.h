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
#include "kernels/linear/linear.h"

namespace tokenbus {

constexpr int kBf16BlockRows = 12;

// sums: [kRows][32].
template <int kRows>
static inline void bf16_block(const bf16* weights, const bf16* rows, int n_in, float* sums) {
  f32x16 total[kRows][2] = {};
  for (int k = 0; k < n_in; k += 2) {
    if constexpr (kRows > 2) fetch_ahead<128>(weights + k * kPanel);
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

template <int kRows>
static void bf16_rest(const bf16* weights, const bf16* rows, int n_in, int num_rows, float* sums) {
  if (num_rows == kRows)
    bf16_block<kRows>(weights, rows, n_in, sums);
  else if constexpr (kRows > 1)
    bf16_rest<kRows - 1>(weights, rows, n_in, num_rows, sums);
}

// sums: [last_row - first_row][32], like compute_panel's.
static void bf16_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
  const bf16* weights = static_cast<const bf16*>(linear.weight) + static_cast<size_t>(panel) * linear.n_in * kPanel;
  const int count = last_row - first_row, blocks = (count + kBf16BlockRows - 1) / kBf16BlockRows;
  for (int block = 0, row = first_row; block < blocks; block++) {
    const int size = (last_row - row + blocks - block - 1) / (blocks - block);  // blocks of nearly one size
    bf16_rest<kBf16BlockRows>(weights, rows.values + static_cast<size_t>(row) * linear.n_in, linear.n_in, size,
                              sums + (row - first_row) * kPanel);
    row += size;
  }
}

}  // namespace tokenbus
#endif
