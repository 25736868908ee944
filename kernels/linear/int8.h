// int8 weights with one scale for each output column, and activations of eight bits with one scale for each row.
//
// A panel is [n_in / 4][32 columns][4] codes, then [32] float scales, then [32] int32: 128 times the sum of a column's
// codes. Activations are kept as q + 128, since the dot product of bytes wants one operand without a sign; those
// integers take away what the 128 adds. All sums are exact until the very end, where they become float once. n_in is a
// multiple of four, and at most 65536, beyond which the sums would not fit 32 bits.
#pragma once
#include "kernels/linear/linear.h"

namespace tokenbus {

constexpr size_t kInt8Tail = kPanel * (sizeof(float) + sizeof(int32_t));

#ifdef __AVX512F__
constexpr int kInt8BlockRows = 12;
#else
constexpr int kInt8BlockRows = 2;
#endif

template <int kRows, class Epilogue>
static inline void int8_block(const int8_t* weights, const Rows& rows, int n_in, int row, Epilogue&& epilogue) {
  i32x16 sums[kRows][2] = {};
  const uint8_t* codes = rows.codes + static_cast<size_t>(row) * n_in;
  for (int k = 0; k < n_in; k += 4) {
    const i32x16 first = load<i32x16>(weights + k * kPanel), second = load<i32x16>(weights + k * kPanel + 64);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; r++) {
      const i32x16 four = broadcast_bits(codes + static_cast<size_t>(r) * n_in + k);
      sums[r][0] = dot_u8s8(sums[r][0], four, first);
      sums[r][1] = dot_u8s8(sums[r][1], four, second);
    }
  }
  const int8_t* tail = weights + static_cast<size_t>(n_in) * kPanel;
  const f32x16 scale[2] = {load<f32x16>(tail), load<f32x16>(tail + 64)};
  const i32x16 excess[2] = {load<i32x16>(tail + 128), load<i32x16>(tail + 192)};
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++) {
    const f32x16 row_scale = broadcast(rows.scales[row + r]);
    f32x16 scaled[2];
    for (int half = 0; half < 2; half++)
      scaled[half] = __builtin_convertvector(sums[r][half] - excess[half], f32x16) * (scale[half] * row_scale);
    epilogue(row + r, scaled[0], scaled[1]);
  }
}

template <int kRows, class Epilogue>
static void int8_rest(const int8_t* weights, const Rows& rows, int n_in, int row, int count, Epilogue&& epilogue) {
  if (count == kRows)
    int8_block<kRows>(weights, rows, n_in, row, epilogue);
  else if constexpr (kRows > 1)
    int8_rest<kRows - 1>(weights, rows, n_in, row, count, epilogue);
}

// Uses rows.codes [M, n_in] and rows.scales [M] of quantize_row_int8.
template <class Epilogue>
static void int8_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                       Epilogue&& epilogue) {
  const size_t panel_bytes = static_cast<size_t>(linear.n_in) * kPanel + kInt8Tail;
  const int8_t* weights = static_cast<const int8_t*>(linear.weight) + panel * panel_bytes;
  const int count = last_row - first_row, blocks = (count + kInt8BlockRows - 1) / kInt8BlockRows;
  for (int block = 0, row = first_row; block < blocks; block++) {
    const int size = (last_row - row + blocks - block - 1) / (blocks - block);  // blocks of nearly one size
    int8_rest<kInt8BlockRows>(weights, rows, linear.n_in, row, size, epilogue);
    row += size;
  }
}

// The weights of one column, [n_in].
static inline void int8_column(const Linear& linear, int column, float* out) {
  const size_t panel_bytes = static_cast<size_t>(linear.n_in) * kPanel + kInt8Tail;
  const int8_t* weights = static_cast<const int8_t*>(linear.weight) + column / kPanel * panel_bytes;
  const int lane = column % kPanel;
  const float scale = reinterpret_cast<const float*>(weights + panel_bytes - kInt8Tail)[lane];
  for (int k = 0; k < linear.n_in; k++) out[k] = scale * weights[(k / 4 * kPanel + lane) * 4 + k % 4];
}

}  // namespace tokenbus
