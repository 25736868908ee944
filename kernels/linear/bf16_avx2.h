// bfloat16 products with AVX2, which has no dot product of pairs: the weights become floats on their way through the
// registers, and the multipliers are the usual ones.
//
// A block is 6 rows by 16 columns: 12 sums, 2 weights and an input in 16 registers (native/pairs.h). A pair of weights is
// split by a shift and a mask once for all rows of the block. One or two rows, which wait for memory, take all 32 columns
// of the panel at once, so that they read it in order. Rows are widened to floats first, kBf16Chunk inputs at a time, so
// that these and their part of the panel stay in the nearest cache until all rows have passed.
//
// Zen 5, two cores, the products of a step (bench.products_cpu): 236 GFLOP/s with 512 rows, of the 272 that the cores can
// multiply and add; 38 GB/s of weights with one row, where AVX512 gets 45.
#pragma once
#include "kernels/linear/linear.h"
#include "kernels/linear/row_blocks.h"
#include "kernels/native/pairs.h"

namespace tokenbus {

constexpr int kBf16BlockRows = 6;
constexpr int kBf16Chunk = 256;  // 6 KB of rows, 16 KB of weights

// Adds to 16 * kVectors columns of sums, [kRows][32]. inputs: [kRows][kBf16Chunk].
template <int kRows, int kVectors>
static inline void bf16_block(const bf16* weights, const float* inputs, int count, bool fetch, float* sums) {
  f32x16 total[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) total[r][v] = load<f32x16>(sums + r * kPanel + 16 * v);
  for (int k = 0; k < count; k += 2, weights += 2 * kPanel) {
    if (fetch) fetch_ahead<128>(weights);
    add_products<2>(
        total, [&](int v) { return weights + 32 * v; }, [&](int row) { return inputs + row * kBf16Chunk + k; },
        [](int) {});
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) store(sums + r * kPanel + 16 * v, total[r][v]);
}

template <int kRows>
static void bf16_rest(const bf16* weights, const float* inputs, int count, int num_rows, bool fetch, float* sums) {
  if (num_rows == kRows) {
    if constexpr (kRows <= 2) {
      bf16_block<kRows, 2>(weights, inputs, count, false, sums);
    } else {
      bf16_block<kRows, 1>(weights, inputs, count, fetch, sums);
      bf16_block<kRows, 1>(weights + kPanel, inputs, count, false, sums + kPanel / 2);
    }
  } else if constexpr (kRows > 1) {
    bf16_rest<kRows - 1>(weights, inputs, count, num_rows, fetch, sums);
  }
}

// sums: [last_row - first_row][32], like compute_panel's.
static void bf16_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel, float* sums) {
  const int n_in = linear.n_in, num_rows = last_row - first_row;
  const bf16* weights = static_cast<const bf16*>(linear.weight) + static_cast<size_t>(panel) * n_in * kPanel;
  alignas(64) float inputs[kBf16BlockRows * kBf16Chunk];
  memset(sums, 0, sizeof(float) * num_rows * kPanel);
  for (int start = 0; start < n_in; start += kBf16Chunk) {
    const int count = n_in - start < kBf16Chunk ? n_in - start : kBf16Chunk;
    for_each_block(num_rows, kBf16BlockRows, [&](RowBlock block) __attribute__((always_inline)) {
      for (int r = 0; r < block.num_rows; r++)
        set_row(inputs + r * kBf16Chunk, rows.values + static_cast<size_t>(first_row + block.row + r) * n_in + start, count);
      bf16_rest<kBf16BlockRows>(weights + static_cast<size_t>(start) * kPanel, inputs, count, block.num_rows,
                                block.index == 0, sums + block.row * kPanel);
    });
  }
}

}  // namespace tokenbus
