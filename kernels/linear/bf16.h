// bfloat16 weights: [panels][n_in / 2][32 columns][2], n_in even. Two neighbours of a column lie together, as the dot
// product of pairs wants them (and the tiles of AMX too).
//
// A block of rows keeps its sums in registers (rows x 2 of them) while the panel passes by once: a panel comes from
// memory for the first block and from the cache for the others. Single rows run at the speed of memory, many at that of
// the multipliers.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

#ifdef __AVX512F__
constexpr int kMaxBlockRows = 12;
#else
constexpr int kMaxBlockRows = 2;
#endif

template <int kRows, class Epilogue>
static inline void bf16_block(const bf16* weights, const bf16* values, int n_in, int row, Epilogue&& epilogue) {
  f32x16 sums[kRows][2] = {};
  const bf16* rows = values + static_cast<size_t>(row) * n_in;
  for (int k = 0; k < n_in; k += 2) {
    if constexpr (kRows > 2) fetch_ahead<128>(weights + k * kPanel);
    const i32x16 first = load<i32x16>(weights + k * kPanel), second = load<i32x16>(weights + k * kPanel + 32);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      const i32x16 pair = broadcast_bits(rows + static_cast<size_t>(r) * n_in + k);
      sums[r][0] = dot_bf16(sums[r][0], first, pair);
      sums[r][1] = dot_bf16(sums[r][1], second, pair);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++) epilogue(row + r, sums[r][0], sums[r][1]);
}

template <int kRows, class Epilogue>
static void bf16_rest(const bf16* weights, const bf16* values, int n_in, int row, int count, Epilogue&& epilogue) {
  if (count == kRows)
    bf16_block<kRows>(weights, values, n_in, row, epilogue);
  else if constexpr (kRows > 1)
    bf16_rest<kRows - 1>(weights, values, n_in, row, count, epilogue);
}

template <class Epilogue>
static void bf16_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                       Epilogue&& epilogue) {
  const bf16* weights = static_cast<const bf16*>(linear.weight) + static_cast<size_t>(panel) * linear.n_in * kPanel;
  const int count = last_row - first_row, blocks = (count + kMaxBlockRows - 1) / kMaxBlockRows;
  for (int block = 0, row = first_row; block < blocks; block++) {
    const int size = (last_row - row + blocks - block - 1) / (blocks - block);  // blocks of nearly one size
    bf16_rest<kMaxBlockRows>(weights, rows.values, linear.n_in, row, size, epilogue);
    row += size;
  }
}

}  // namespace tokenbus
