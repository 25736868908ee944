// int8 weights with one scale for each output column; inputs as bytes with one scale for every 64 of a row.
//
// A panel is [n_in / 4][32 columns][4] bytes, a weight's code + 128, then [32] float scales: weight = scale * code. n_in
// is a multiple of 64. The dot product of bytes wants one operand without a sign, hence the 128; a group's sum of input
// codes takes away what it adds. So a group's dot product is an exact integer, and the groups are added in float.
//
// Why groups: a few outliers would leave the other values of a whole row only some of the 255 codes. With one scale for
// a row, SmolLM2-135M diverges from bfloat16 four times as far; the groups cost a tenth of the speed.
#pragma once
#include "kernels/linear/fused.h"
#include "kernels/linear/linear.h"

namespace tokenbus {

constexpr size_t kInt8Tail = kPanel * sizeof(float);

#ifdef __AVX512F__
constexpr int kInt8BlockRows = 8;
#else
constexpr int kInt8BlockRows = 2;
#endif

template <int kRows, class Epilogue>
static inline void int8_block(const uint8_t* weights, const Rows& rows, int n_in, int row, Epilogue&& epilogue) {
  const int num_groups = n_in / kInt8Group;
  const uint8_t* codes = rows.codes + static_cast<size_t>(row) * n_in;
  const float* row_scales = rows.scales + static_cast<size_t>(row) * num_groups;
  const float* row_sums = rows.sums + static_cast<size_t>(row) * num_groups;
  f32x16 sums[kRows][2] = {};
  for (int group = 0; group < num_groups; group++, codes += kInt8Group) {
    i32x16 dots[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++)
      dots[r][0] = dots[r][1] = i32x16{} - 128 * static_cast<int32_t>(row_sums[r * num_groups + group]);
#pragma GCC unroll 4
    for (int k = 0; k < kInt8Group; k += 4, weights += 4 * kPanel) {
      if constexpr (kRows > 2) fetch_ahead<128>(weights);
      const i32x16 first = load<i32x16>(weights), second = load<i32x16>(weights + 64);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const i32x16 four = broadcast_bits(codes + static_cast<size_t>(r) * n_in + k);
        dots[r][0] = dot_u8s8(dots[r][0], first, four);
        dots[r][1] = dot_u8s8(dots[r][1], second, four);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) {
      const f32x16 scale = broadcast(row_scales[r * num_groups + group]);
      sums[r][0] = fused(__builtin_convertvector(dots[r][0], f32x16), scale, sums[r][0]);
      sums[r][1] = fused(__builtin_convertvector(dots[r][1], f32x16), scale, sums[r][1]);
    }
  }
  const f32x16 first_scale = load<f32x16>(weights), second_scale = load<f32x16>(weights + 64);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) epilogue(row + r, sums[r][0] * first_scale, sums[r][1] * second_scale);
}

template <int kRows, class Epilogue>
static void int8_rest(const uint8_t* weights, const Rows& rows, int n_in, int row, int count, Epilogue&& epilogue) {
  if (count == kRows)
    int8_block<kRows>(weights, rows, n_in, row, epilogue);
  else if constexpr (kRows > 1)
    int8_rest<kRows - 1>(weights, rows, n_in, row, count, epilogue);
}

template <class Epilogue>
static void int8_panel(const Linear& linear, const Rows& rows, int first_row, int last_row, int panel,
                       Epilogue&& epilogue) {
  const size_t panel_bytes = static_cast<size_t>(linear.n_in) * kPanel + kInt8Tail;
  const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + panel * panel_bytes;
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
  const uint8_t* weights = static_cast<const uint8_t*>(linear.weight) + column / kPanel * panel_bytes;
  const int lane = column % kPanel;
  const float scale = load<float>(weights + panel_bytes - kInt8Tail + lane * sizeof(float));
  for (int k = 0; k < linear.n_in; k++) out[k] = scale * (weights[(k / 4 * kPanel + lane) * 4 + k % 4] - 128);
}

}  // namespace tokenbus
