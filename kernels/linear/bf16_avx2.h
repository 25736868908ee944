// bfloat16 products with AVX2, which has no dot product of pairs: the weights become floats on their way through the
// registers, and the multipliers are the usual ones.
//
// A block is 6 rows by 16 columns: 12 sums, 2 weights, an input and a mask fill the 16 registers. A pair of weights is
// split by a shift and a mask once for all rows of the block. One or two rows, which wait for memory, take all 32 columns
// of the panel at once, so that they read it in order. Rows are widened to floats first, kBf16Chunk inputs at a time, so
// that these and their part of the panel stay in the nearest cache until all rows have passed.
//
// Zen 5, two cores, the products of a step (bench.products_cpu): 184 GFLOP/s with 512 rows, of the 272 that the cores can
// multiply and add; 29 GB/s of weights with one row, where AVX512 gets 34.
#pragma once
#include "kernels/linear/linear.h"
#include "kernels/linear/row_blocks.h"

namespace tokenbus {

constexpr int kBf16BlockRows = 6;
constexpr int kBf16Chunk = 256;  // 6 KB of rows, 16 KB of weights

// Adds to 8 * kVectors columns of sums, [kRows][32]. inputs: [kRows][kBf16Chunk].
template <int kRows, int kVectors>
static inline void bf16_block(const bf16* weights, const float* inputs, int count, bool fetch, float* sums) {
  __m256 total[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) total[r][v] = _mm256_loadu_ps(sums + r * kPanel + 8 * v);
  const __m256i high_half = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  for (int k = 0; k < count; k += 2, weights += 2 * kPanel) {
    if (fetch) fetch_ahead<128>(weights);
#pragma GCC unroll 2
    for (int second = 0; second < 2; second++) {
      asm volatile("" ::: "memory");  // else g++ splits all pairs at once, and wants more registers than there are
      __m256 weight[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        const __m256i pair = load<__m256i>(weights + 16 * v);
        weight[v] = _mm256_castsi256_ps(second ? _mm256_and_si256(pair, high_half) : _mm256_slli_epi32(pair, 16));
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const __m256 input = _mm256_broadcast_ss(inputs + r * kBf16Chunk + k + second);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) total[r][v] = _mm256_fmadd_ps(weight[v], input, total[r][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) _mm256_storeu_ps(sums + r * kPanel + 8 * v, total[r][v]);
}

template <int kRows>
static void bf16_rest(const bf16* weights, const float* inputs, int count, int num_rows, bool fetch, float* sums) {
  if (num_rows == kRows) {
    if constexpr (kRows <= 2) {
      bf16_block<kRows, 4>(weights, inputs, count, false, sums);
    } else {
      bf16_block<kRows, 2>(weights, inputs, count, fetch, sums);
      bf16_block<kRows, 2>(weights + kPanel, inputs, count, false, sums + kPanel / 2);
    }
  } else if constexpr (kRows > 1) {
    bf16_rest<kRows - 1>(weights, inputs, count, num_rows, fetch, sums);
  }
}

static inline void widen(const bf16* from, int count, float* to) {
  int k = 0;
  for (; k + 8 <= count; k += 8)
    store(to + k, _mm256_slli_epi32(_mm256_cvtepu16_epi32(load<__m128i>(from + k)), 16));
  for (; k < count; k++) to[k] = to_float(from[k]);
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
        widen(rows.values + static_cast<size_t>(first_row + block.row + r) * n_in + start, count, inputs + r * kBf16Chunk);
      bf16_rest<kBf16BlockRows>(weights + static_cast<size_t>(start) * kPanel, inputs, count, block.num_rows,
                                block.index == 0, sums + block.row * kPanel);
    });
  }
}

}  // namespace tokenbus
